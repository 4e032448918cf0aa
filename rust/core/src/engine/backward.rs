//! The way back: from a seed at the loss to the flat gradient of the parameters, node by node in reverse.
//!
//! Every node adds to the gradients of its inputs, in the order of the recording reversed; what nothing reaches stays
//! zero.

use super::entry::{Entry, GradientPlace, Packed, Workspace, resolve};
use super::forward::{around, indices, is_repeated, put, scratch, take};
use super::kernels::axes;
use super::kernels::elementwise::update;
use super::kernels::matmul::{Left, Sizes, multiply, pack, pack_transposed, panels_len};
use super::kernels::rows::{Row, exponentials_of_rows};
use super::network::{FeedValue, Node, NodeId};
use super::operation::Operation;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::numeric::elementary::exp_slice;

impl Entry {
    /// Writes `seed` times the gradient of the loss with respect to the parameters into `gradient`, after
    /// [`Entry::forward`] with the same arguments.
    #[allow(clippy::too_many_arguments)] // what a run holds, then what comes out
    pub fn backward(
        &self,
        exec: &Exec<'_>,
        workspace: &mut Workspace,
        parameters: &[f32],
        packed: &Packed,
        feeds: &[FeedValue<'_>],
        seed: f32,
        gradient: &mut [f32],
    ) -> Result<()> {
        let loss = self.loss().ok_or_else(|| Error::Tape("the entry has no loss to go back from".into()))?;
        gradient.fill(0.0);
        workspace.gradients.fill(0.0);
        match workspace.gradient_places[loss] {
            GradientPlace::Nowhere => return Ok(()),
            GradientPlace::Parameter(offset) => gradient[offset] = seed,
            GradientPlace::Buffer(offset) => workspace.gradients[offset] = seed,
        }
        for &node in self.order().iter().rev().skip_while(|&&node| node > loss) {
            let recorded = &self.network().nodes()[node];
            let leaf = matches!(recorded.operation, Operation::Parameter(_) | Operation::Reshape);
            if let GradientPlace::Buffer(offset) = workspace.gradient_places[node]
                && !leaf
            {
                exec.check()?;
                self.propagate(exec, workspace, parameters, packed, feeds, node, offset, gradient)?;
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, clippy::too_many_lines)] // one arm an operation
    fn propagate(
        &self,
        exec: &Exec<'_>,
        workspace: &mut Workspace,
        parameters: &[f32],
        packed: &Packed,
        feeds: &[FeedValue<'_>],
        node: NodeId,
        offset: usize,
        gradient: &mut [f32],
    ) -> Result<()> {
        let network = self.network().as_ref();
        let nodes = network.nodes();
        let recorded = &nodes[node];
        let level = exec.level();
        let Workspace {
            places, gradient_places, sizes, values, gradients, exponentials, rows, panels, ..
        } = workspace;
        let len = |node: NodeId| sizes[node].iter().product::<usize>();
        let value = |node: NodeId| resolve(places[node], len(node), values, network, parameters, feeds);
        let input = |which: usize| value(recorded.inputs[which]);
        let (below, above) = gradients.split_at_mut(offset);
        let up = &above[..len(node)];
        let mut inputs = InputGradients { node: recorded, gradient_places, sizes, below, gradient };
        // What a scalar constant was multiplied or divided with is read as one number.
        let scalar = |which: usize| -> Result<Option<f32>> {
            let operand = input(which)?;
            Ok((operand.len() != up.len()).then(|| operand[0]))
        };
        match &recorded.operation {
            Operation::Parameter(_)
            | Operation::Input(_)
            | Operation::Selection(_)
            | Operation::Constant(_)
            | Operation::Reshape => {}
            Operation::Add => {
                for which in 0..2 {
                    if let Some(down) = inputs.get(which) {
                        update(level, down, [up], |d, [u]| d + u);
                    }
                }
            }
            Operation::Subtract => {
                if let Some(down) = inputs.get(0) {
                    update(level, down, [up], |d, [u]| d + u);
                }
                if let Some(down) = inputs.get(1) {
                    update(level, down, [up], |d, [u]| d - u);
                }
            }
            Operation::Multiply => {
                for which in 0..2 {
                    let other = 1 - which;
                    let Some(down) = inputs.get(which) else { continue };
                    match scalar(other)? {
                        Some(factor) => update(level, down, [up], |d, [u]| u.mul_add(factor, d)),
                        None => update(level, down, [up, input(other)?], |d, [u, x]| u.mul_add(x, d)),
                    }
                }
            }
            Operation::Divide => {
                if let Some(down) = inputs.get(0) {
                    match scalar(1)? {
                        Some(divisor) => update(level, down, [up], |d, [u]| d + u / divisor),
                        None => update(level, down, [up, input(1)?], |d, [u, b]| d + u / b),
                    }
                }
                if let Some(down) = inputs.get(1) {
                    update(level, down, [up, value(node)?, input(1)?], |d, [u, out, b]| d - u * out / b);
                }
            }
            Operation::Negate => {
                if let Some(down) = inputs.get(0) {
                    update(level, down, [up], |d, [u]| d - u);
                }
            }
            Operation::Tanh => {
                if let Some(down) = inputs.get(0) {
                    update(level, down, [up, value(node)?], |d, [u, t]| u.mul_add((-t).mul_add(t, 1.0), d));
                }
            }
            Operation::Relu => {
                if let Some(down) = inputs.get(0) {
                    update(level, down, [up, input(0)?], |d, [u, x]| if x > 0.0 { d + u } else { d });
                }
            }
            Operation::Exp => {
                if let Some(down) = inputs.get(0) {
                    update(level, down, [up, value(node)?], |d, [u, e]| u.mul_add(e, d));
                }
            }
            Operation::Log => {
                if let Some(down) = inputs.get(0) {
                    update(level, down, [up, input(0)?], |d, [u, x]| d + u / x);
                }
            }
            Operation::Sqrt => {
                if let Some(down) = inputs.get(0) {
                    update(level, down, [up, value(node)?], |d, [u, root]| d + 0.5 * u / root);
                }
            }
            Operation::Matmul => {
                let (a, b) = (&sizes[recorded.inputs[0]], &sizes[recorded.inputs[1]]);
                let (m, k, n) = (a[0], a[1], b[1]);
                if let Some(down) = inputs.get(0) {
                    let left = Left { matrix: up, transposed: false };
                    let product = Sizes { rows: m, depth: n, columns: k };
                    let panels = if let Some(panels) = self.packed_transpose(packed, node) {
                        panels
                    } else {
                        let panels = scratch(panels, panels_len(n, k));
                        pack_transposed(level, input(1)?, n, k, panels);
                        panels
                    };
                    multiply(exec, left, panels, product, down, true)?;
                }
                if let Some(down) = inputs.get(1) {
                    let left = Left { matrix: input(0)?, transposed: true };
                    let product = Sizes { rows: k, depth: m, columns: n };
                    let panels = scratch(panels, panels_len(m, n));
                    pack(level, up, m, n, panels);
                    multiply(exec, left, panels, product, down, true)?;
                }
            }
            Operation::Sum(reduced) | Operation::Mean(reduced) => {
                if let Some(down) = inputs.get(0) {
                    let from = &sizes[recorded.inputs[0]];
                    let count: usize = reduced.iter().map(|&axis| from[axis]).product();
                    let scale = match recorded.operation {
                        Operation::Mean(_) => 1.0 / count as f32,
                        _ => 1.0,
                    };
                    axes::repeat(level, up, from, |axis| reduced.contains(&axis), Some(scale), down);
                }
            }
            Operation::Transpose(permutation) => {
                if let Some(down) = inputs.get(0) {
                    axes::for_each_permuted(&sizes[node], permutation, |to, from| down[from] += up[to]);
                }
            }
            Operation::BroadcastTo => {
                if let Some(down) = inputs.get(0) {
                    let (from, to) = (&sizes[recorded.inputs[0]], &sizes[node]);
                    axes::add_sums(level, up, to, |axis| is_repeated(from, to, axis), 1.0, down);
                }
            }
            Operation::Gather => {
                let Operation::Selection(feed) = nodes[recorded.inputs[1]].operation else {
                    return Err(Error::Internal("gather without a selection".into()));
                };
                let columns = sizes[recorded.inputs[0]][1];
                if let Some(down) = inputs.get(0)
                    && columns > 0
                {
                    for (up, &index) in up.chunks_exact(columns).zip(indices(feeds, feed)?) {
                        let start = index as usize * columns;
                        update(level, &mut down[start..start + columns], [up], |d, [u]| d + u);
                    }
                }
            }
            Operation::Softmax(axis) => {
                if let Some(down) = inputs.get(0) {
                    let result = value(node)?;
                    lines(&sizes[node], *axis, [result, up], down, |[p, u], down| {
                        let dot = axes::dot(level, p, u);
                        update(level, down, [p, u], |d, [p, u]| p.mul_add(u - dot, d));
                    });
                }
            }
            Operation::LogSoftmax(axis) => {
                if let Some(down) = inputs.get(0) {
                    let result = value(node)?;
                    let mut softmax = Vec::new();
                    lines(&sizes[node], *axis, [result, up], down, |[log, u], down| {
                        softmax.resize(log.len(), 0.0);
                        exp_slice(level, log, &mut softmax);
                        let sum: f32 = axes::row_sum(u);
                        update(level, down, [&softmax, u], |d, [p, u]| d + (-p).mul_add(sum, u));
                    });
                }
            }
            Operation::LogSumExp(axis) => {
                if let Some(down) = inputs.get(0) {
                    let (_, length, inner) = around(&sizes[recorded.inputs[0]], *axis);
                    let x = input(0)?;
                    let mut column = vec![0.0; length];
                    let mut softmax = vec![0.0; length];
                    let mut sums = vec![0.0; length];
                    for (place, &u) in up.iter().enumerate() {
                        take(x, place, length, inner, &mut column);
                        let mut row = [Row { max: f32::NEG_INFINITY, sum: 0.0 }];
                        exponentials_of_rows(level, &column, &mut softmax, length, &mut row);
                        take(down, place, length, inner, &mut sums);
                        let factor = u / row[0].sum;
                        update(level, &mut sums, [&softmax], |d, [e]| e.mul_add(factor, d));
                        put(&sums, place, length, inner, down);
                    }
                }
            }
            Operation::CrossEntropy => {
                let Some(down) = inputs.get(0) else { return Ok(()) };
                let classes = sizes[recorded.inputs[0]][1].max(1);
                let weights = recorded.inputs.get(2).map(|_| input(2)).transpose()?;
                let weight = |row: usize| weights.map_or(1.0, |weights| weights[row]);
                let lines = down.chunks_exact_mut(classes).zip(exponentials[node].chunks_exact(classes));
                if let Operation::Selection(feed) = nodes[recorded.inputs[1]].operation {
                    let targets = indices(feeds, feed)?;
                    let total: f64 = (0..targets.len()).map(|row| f64::from(weight(row))).sum();
                    let share = f64::from(up[0]) / total;
                    for (row, (down, exps)) in lines.enumerate() {
                        let pull = (share * f64::from(weight(row))) as f32;
                        let factor = pull / rows[node][row].sum;
                        update(level, down, [exps], |d, [e]| e.mul_add(factor, d));
                        down[targets[row] as usize] -= pull;
                    }
                } else {
                    let targets = input(1)?;
                    let masses: Vec<f64> = targets
                        .chunks_exact(classes)
                        .enumerate()
                        .map(|(row, targets)| {
                            f64::from(weight(row)) * targets.iter().map(|&t| f64::from(t)).sum::<f64>()
                        })
                        .collect();
                    let share = f64::from(up[0]) / masses.iter().sum::<f64>();
                    for (row, (down, exps)) in lines.enumerate() {
                        let factor = (share * masses[row]) as f32 / rows[node][row].sum;
                        let pull = (share * f64::from(weight(row))) as f32;
                        let targets = &targets[row * classes..(row + 1) * classes];
                        update(level, down, [exps, targets], |d, [e, t]| {
                            (-pull).mul_add(t, e.mul_add(factor, d))
                        });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Where the gradients of a node's inputs are added to.
struct InputGradients<'a> {
    node: &'a Node,
    gradient_places: &'a [GradientPlace],
    sizes: &'a [Vec<usize>],
    /// Gradients of the nodes before this one.
    below: &'a mut [f32],
    /// Gradients of the parameters.
    gradient: &'a mut [f32],
}

impl InputGradients<'_> {
    /// The gradient of an input, `None` where none is wanted.
    fn get(&mut self, which: usize) -> Option<&mut [f32]> {
        let input = self.node.inputs[which];
        let len = self.sizes[input].iter().product::<usize>();
        match self.gradient_places[input] {
            GradientPlace::Parameter(offset) => Some(&mut self.gradient[offset..offset + len]),
            GradientPlace::Buffer(offset) => Some(&mut self.below[offset..offset + len]),
            GradientPlace::Nowhere => None,
        }
    }
}

/// Calls `body([a, b], down)` for every line along an axis; `down` is added to in place.
fn lines(
    sizes: &[usize],
    axis: usize,
    inputs: [&[f32]; 2],
    down: &mut [f32],
    mut body: impl FnMut([&[f32]; 2], &mut [f32]),
) {
    let (outer, length, inner) = around(sizes, axis);
    if length == 0 {
        return;
    }
    if inner == 1 {
        let pairs = inputs[0].chunks_exact(length).zip(inputs[1].chunks_exact(length));
        for ((a, b), down) in pairs.zip(down.chunks_exact_mut(length)) {
            body([a, b], down);
        }
        return;
    }
    let mut columns = [vec![0.0; length], vec![0.0; length], vec![0.0; length]];
    for place in 0..outer * inner {
        let [a, b, sums] = &mut columns;
        take(inputs[0], place, length, inner, a);
        take(inputs[1], place, length, inner, b);
        take(down, place, length, inner, sums);
        body([a, b], sums);
        put(sums, place, length, inner, down);
    }
}
