//! The way forward: every node of an entry in the order it was recorded.

use super::entry::{Entry, Packed, Place, Workspace, resolve};
use super::kernels::elementwise::{map, update};
use super::kernels::matmul::{Left, Sizes, multiply, pack, panels_len};
use super::kernels::rows::{Row, exponentials_of_rows};
use super::kernels::{axes, matmul};
use super::network::{FeedValue, NodeId};
use super::operation::Operation;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::numeric::elementary::{exp_slice, ln_slice, tanh_slice};

/// Lengths around one axis: how many rows before it, its own, how many elements after it.
pub(super) fn around(sizes: &[usize], axis: usize) -> (usize, usize, usize) {
    (sizes[..axis].iter().product(), sizes[axis], sizes[axis + 1..].iter().product())
}

/// The axes along which a value of `from` is repeated to `to`.
pub(super) fn is_repeated(from: &[usize], to: &[usize], axis: usize) -> bool {
    let new = to.len() - from.len();
    axis < new || (from[axis - new] == 1 && to[axis] != 1)
}

/// The indices that a run brings for a selection.
pub(super) fn indices<'f>(feeds: &[FeedValue<'f>], feed: usize) -> Result<&'f [u32]> {
    match feeds[feed] {
        FeedValue::Index(indices) => Ok(indices),
        _ => Err(Error::Internal("a selection without indices".into())),
    }
}

impl Entry {
    /// Computes every node of the entry. `packed` comes from [`Entry::pack`] with the same parameters.
    pub fn forward(
        &self,
        exec: &Exec<'_>,
        workspace: &mut Workspace,
        parameters: &[f32],
        packed: &Packed,
        feeds: &[FeedValue<'_>],
    ) -> Result<()> {
        for &node in self.order() {
            if let Place::Value(offset) = workspace.places[node] {
                // A reshape of a computed value shares its place, and has nothing to do.
                if self.network().nodes()[node].operation != Operation::Reshape {
                    exec.check()?;
                    self.compute(exec, workspace, parameters, packed, feeds, node, offset)?;
                }
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, clippy::too_many_lines)] // one arm an operation
    fn compute(
        &self,
        exec: &Exec<'_>,
        workspace: &mut Workspace,
        parameters: &[f32],
        packed: &Packed,
        feeds: &[FeedValue<'_>],
        node: NodeId,
        offset: usize,
    ) -> Result<()> {
        let network = self.network().as_ref();
        let recorded = &network.nodes()[node];
        let level = exec.level();
        let Workspace { places, sizes, values, exponentials, rows, panels, mass, .. } = workspace;
        let elements: usize = sizes[node].iter().product();
        let (below, above) = values.split_at_mut(offset);
        let out = &mut above[..elements];
        let input = |which: usize| {
            let node = recorded.inputs[which];
            resolve(places[node], sizes[node].iter().product(), below, network, parameters, feeds)
        };
        let input_sizes = |which: usize| sizes[recorded.inputs[which]].as_slice();
        match &recorded.operation {
            Operation::Parameter(_)
            | Operation::Input(_)
            | Operation::Selection(_)
            | Operation::Constant(_)
            | Operation::Reshape => {}
            Operation::Add => binary(level, out, input(0)?, input(1)?, |a, b| a + b),
            Operation::Subtract => binary(level, out, input(0)?, input(1)?, |a, b| a - b),
            Operation::Multiply => binary(level, out, input(0)?, input(1)?, |a, b| a * b),
            Operation::Divide => binary(level, out, input(0)?, input(1)?, |a, b| a / b),
            Operation::Negate => map(level, out, [input(0)?], |[a]| -a),
            // Not max(a, 0), which would turn NaN into 0.
            Operation::Relu => map(level, out, [input(0)?], |[a]| if a <= 0.0 { 0.0 } else { a }),
            Operation::Sqrt => map(level, out, [input(0)?], |[a]| a.sqrt()),
            Operation::Tanh => tanh_slice(level, input(0)?, out),
            Operation::Exp => exp_slice(level, input(0)?, out),
            Operation::Log => ln_slice(level, input(0)?, out),
            Operation::Matmul => {
                let left = Left { matrix: input(0)?, transposed: false };
                let (a, b) = (input_sizes(0), input_sizes(1));
                let product = Sizes { rows: a[0], depth: a[1], columns: b[1] };
                if let Some(panels) = self.packed_right(packed, node) {
                    return multiply(exec, left, panels, product, out, false);
                }
                let panels = scratch(panels, panels_len(product.depth, product.columns));
                pack(level, input(1)?, product.depth, product.columns, panels);
                matmul::multiply(exec, left, panels, product, out, false)?;
            }
            Operation::Sum(reduced) => {
                out.fill(0.0);
                axes::add_sums(level, input(0)?, input_sizes(0), |axis| reduced.contains(&axis), 1.0, out);
            }
            Operation::Mean(reduced) => {
                let count: usize = reduced.iter().map(|&axis| input_sizes(0)[axis]).product();
                out.fill(0.0);
                axes::add_sums(level, input(0)?, input_sizes(0), |axis| reduced.contains(&axis), 1.0, out);
                let count = count as f32;
                update(level, out, [], |value, []| value / count);
            }
            Operation::Transpose(permutation) => {
                let input = input(0)?;
                axes::for_each_permuted(&sizes[node], permutation, |to, from| out[to] = input[from]);
            }
            Operation::BroadcastTo => {
                let (from, to) = (input_sizes(0), &sizes[node]);
                axes::repeat(level, input(0)?, to, |axis| is_repeated(from, to, axis), None, out);
            }
            Operation::Gather => {
                let Operation::Selection(feed) = network.nodes()[recorded.inputs[1]].operation else {
                    return Err(Error::Internal("gather without a selection".into()));
                };
                let (table, columns) = (input(0)?, input_sizes(0)[1]);
                if columns > 0 {
                    for (row, &index) in out.chunks_exact_mut(columns).zip(indices(feeds, feed)?) {
                        let start = index as usize * columns;
                        row.copy_from_slice(&table[start..start + columns]);
                    }
                }
            }
            Operation::Softmax(axis) => along(level, input(0)?, &sizes[node], *axis, out, |row, out, _| {
                update(level, out, [], |value, []| value / row.sum);
            }),
            Operation::LogSoftmax(axis) => {
                along(level, input(0)?, &sizes[node], *axis, out, |row, out, x| {
                    let log_sum = row.log_sum();
                    out.iter_mut().zip(x).for_each(|(value, x)| *value = (x - row.max) - log_sum);
                });
            }
            Operation::LogSumExp(axis) => {
                let (_, length, inner) = around(input_sizes(0), *axis);
                let x = input(0)?;
                let (mut column, mut spare) = (vec![0.0; length], vec![0.0; length]);
                for (place, value) in out.iter_mut().enumerate() {
                    take(x, place, length, inner, &mut column);
                    let mut row = [Row { max: f32::NEG_INFINITY, sum: 0.0 }];
                    exponentials_of_rows(level, &column, &mut spare, length, &mut row);
                    *value = row[0].logsumexp();
                }
            }
            Operation::CrossEntropy => {
                let logits = input(0)?;
                let (count, classes) = (input_sizes(0)[0], input_sizes(0)[1]);
                let (kept, rows) = (&mut exponentials[node], &mut rows[node]);
                kept.resize(logits.len(), 0.0);
                rows.resize(count, Row { max: 0.0, sum: 0.0 });
                exponentials_of_rows(level, logits, kept, classes, rows);
                let weights = recorded.inputs.get(2).map(|_| input(2)).transpose()?;
                let (mut loss, mut total) = (0.0_f64, 0.0_f64);
                let mut add = |row: usize, target_mass: f64, target_logit: f64| {
                    let weight = weights.map_or(1.0, |weights| f64::from(weights[row]));
                    let logsumexp = f64::from(rows[row].max) + f64::from(rows[row].log_sum());
                    loss += weight * (target_mass * logsumexp - target_logit);
                    total += weight * target_mass;
                };
                if let Operation::Selection(feed) = network.nodes()[recorded.inputs[1]].operation {
                    for (row, &class) in indices(feeds, feed)?.iter().enumerate() {
                        add(row, 1.0, f64::from(logits[row * classes + class as usize]));
                    }
                } else {
                    for (row, targets) in input(1)?.chunks_exact(classes.max(1)).enumerate() {
                        let logits = &logits[row * classes..(row + 1) * classes];
                        let (mut target_mass, mut target_logit) = (0.0_f64, 0.0_f64);
                        for (&target, &logit) in targets.iter().zip(logits) {
                            target_mass += f64::from(target);
                            // A class without weight says nothing, even of an infinite logit.
                            if target != 0.0 {
                                target_logit += f64::from(target) * f64::from(logit);
                            }
                        }
                        add(row, target_mass, target_logit);
                    }
                }
                out[0] = (loss / total) as f32;
                if self.loss() == Some(node) {
                    *mass = Some(total as f32);
                }
            }
        }
        Ok(())
    }
}

fn binary(
    level: crate::base::simd::SimdLevel,
    out: &mut [f32],
    a: &[f32],
    b: &[f32],
    body: impl Fn(f32, f32) -> f32,
) {
    match (a.len() == out.len(), b.len() == out.len()) {
        (true, true) => map(level, out, [a, b], |[a, b]| body(a, b)),
        (true, false) => {
            let b = b[0];
            map(level, out, [a], |[a]| body(a, b));
        }
        _ => {
            let a = a[0];
            map(level, out, [b], |[b]| body(a, b));
        }
    }
}

/// The first `len` floats of a buffer that grows when it must.
pub(super) fn scratch(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// Copies the elements along an axis: line number `place`, of `length` elements `inner` apart.
pub(super) fn take(x: &[f32], place: usize, length: usize, inner: usize, column: &mut [f32]) {
    if length == 0 {
        return;
    }
    let start = place / inner * length * inner + place % inner;
    column.iter_mut().zip(x[start..].iter().step_by(inner)).for_each(|(to, from)| *to = *from);
}

/// Writes the elements along an axis back.
pub(super) fn put(column: &[f32], place: usize, length: usize, inner: usize, x: &mut [f32]) {
    if length == 0 {
        return;
    }
    let start = place / inner * length * inner + place % inner;
    x[start..].iter_mut().step_by(inner).zip(column).for_each(|(to, from)| *to = *from);
}

/// Fills `out` line by line along an axis: `finish(row, out, x)` gets a line's exponentials in `out`.
fn along(
    level: crate::base::simd::SimdLevel,
    x: &[f32],
    sizes: &[usize],
    axis: usize,
    out: &mut [f32],
    finish: impl Fn(Row, &mut [f32], &[f32]),
) {
    let (outer, length, inner) = around(sizes, axis);
    if length == 0 {
        return;
    }
    let mut row = [Row { max: f32::NEG_INFINITY, sum: 0.0 }];
    if inner == 1 {
        for (out, x) in out.chunks_exact_mut(length).zip(x.chunks_exact(length)) {
            exponentials_of_rows(level, x, out, length, &mut row);
            finish(row[0], out, x);
        }
        return;
    }
    let (mut column, mut result) = (vec![0.0; length], vec![0.0; length]);
    for place in 0..outer * inner {
        take(x, place, length, inner, &mut column);
        exponentials_of_rows(level, &column, &mut result, length, &mut row);
        finish(row[0], &mut result, &column);
        put(&result, place, length, inner, out);
    }
}
