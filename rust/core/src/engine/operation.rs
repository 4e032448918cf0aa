//! The operations of a network, the shapes they give, and what they refuse.
//!
//! Shapes are worked out when an operation is recorded, so a mistake is told at the line that makes it. Broadcasting is
//! explicit ([`Operation::BroadcastTo`]); only a constant of shape `()` goes with any shape.

use serde::{Deserialize, Serialize};

use super::shape::{Dim, Shape};
use crate::base::error::{Error, Result};

/// What a node computes. Gradients are given in the table of `docs/numerics.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// The parameter of that slot.
    Parameter(usize),
    /// The feed of that index: floats.
    Input(usize),
    /// The feed of that index: whole numbers below a vocabulary.
    Selection(usize),
    /// Fixed values, from that offset of the network's constants.
    Constant(usize),
    /// a + b
    Add,
    /// a - b
    Subtract,
    /// a b
    Multiply,
    /// a / b
    Divide,
    /// -a
    Negate,
    /// tanh a
    Tanh,
    /// max(a, 0), with gradient 0 at 0
    Relu,
    /// e^a
    Exp,
    /// natural logarithm
    Log,
    /// square root
    Sqrt,
    /// Matrix product of (m, k) and (k, n).
    Matmul,
    /// Sum over these axes.
    Sum(Vec<usize>),
    /// Mean over these axes.
    Mean(Vec<usize>),
    /// The same elements in C order under another shape.
    Reshape,
    /// Axis i of the result is axis `permutation[i]` of the input.
    Transpose(Vec<usize>),
    /// Repeated along axes of length 1 and new leading axes, as `NumPy` does.
    BroadcastTo,
    /// Rows of a table (rank 2) picked by a selection.
    Gather,
    /// e^(a - logsumexp a) along an axis.
    Softmax(usize),
    /// a - logsumexp a along an axis.
    LogSoftmax(usize),
    /// max-shifted logarithm of the sum of e^a along an axis.
    LogSumExp(usize),
    /// Mean cross entropy of logits (b, c) against a selection (b,) or weights (b, c), rows weighted by an optional
    /// third input (b,).
    CrossEntropy,
}

impl Operation {
    /// The name users know it by.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Parameter(_) => "parameter",
            Self::Input(_) => "input",
            Self::Selection(_) => "selection",
            Self::Constant(_) => "constant",
            Self::Add => "add",
            Self::Subtract => "sub",
            Self::Multiply => "mul",
            Self::Divide => "div",
            Self::Negate => "neg",
            Self::Tanh => "tanh",
            Self::Relu => "relu",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Sqrt => "sqrt",
            Self::Matmul => "matmul",
            Self::Sum(_) => "sum",
            Self::Mean(_) => "mean",
            Self::Reshape => "reshape",
            Self::Transpose(_) => "transpose",
            Self::BroadcastTo => "broadcast_to",
            Self::Gather => "gather",
            Self::Softmax(_) => "softmax",
            Self::LogSoftmax(_) => "log_softmax",
            Self::LogSumExp(_) => "logsumexp",
            Self::CrossEntropy => "cross_entropy",
        }
    }
}

/// Whether a node is a constant of shape `()`, which goes with any shape.
pub fn is_scalar_constant(operation: &Operation, shape: &Shape) -> bool {
    matches!(operation, Operation::Constant(_)) && shape.rank() == 0
}

/// The shape of an elementwise operation of two values; `scalars` says which of them are scalar constants.
pub fn elementwise(name: &str, a: &Shape, b: &Shape, scalars: [bool; 2]) -> Result<Shape> {
    match scalars {
        [_, true] => Ok(a.clone()),
        [true, false] => Ok(b.clone()),
        _ if a == b => Ok(a.clone()),
        _ => Err(Error::Shape(format!(
            "{name}: shapes {a} and {b} differ; broadcasting is explicit, call .broadcast_to(...)"
        ))),
    }
}

/// The shape of the product of two matrices.
pub fn matmul(a: &Shape, b: &Shape) -> Result<Shape> {
    match (a.dims(), b.dims()) {
        (&[rows, inner], &[depth, columns]) if inner == depth => {
            Shape::new(vec![rows, columns]).map_err(|_| {
                Error::Shape(format!("matmul: shapes {a} and {b} give a result with the batch axis twice"))
            })
        }
        _ => Err(Error::Shape(format!("matmul: shapes {a} and {b}, wanted (m, k) and (k, n)"))),
    }
}

/// The shape after a permutation of axes; none reverses them.
pub fn transpose(shape: &Shape, axes: Option<&[i64]>) -> Result<(Vec<usize>, Shape)> {
    let permutation = match axes {
        None => (0..shape.rank()).rev().collect(),
        Some(axes) => {
            let found = axes.iter().map(|&axis| shape.axis(axis)).collect::<Result<Vec<_>>>()?;
            let mut sorted = found.clone();
            sorted.sort_unstable();
            if sorted != (0..shape.rank()).collect::<Vec<_>>() {
                return Err(Error::Shape(format!(
                    "transpose: axes {axes:?} do not name every axis of shape {shape} once"
                )));
            }
            found
        }
    };
    let dims = permutation.iter().map(|&axis| shape.dims()[axis]).collect();
    Ok((permutation, Shape::new(dims)?))
}

/// Checks that `from` can be repeated to `to`, as `NumPy`'s rules say.
pub fn broadcast(from: &Shape, to: &Shape) -> Result<()> {
    let fits = from.rank() <= to.rank()
        && from
            .dims()
            .iter()
            .rev()
            .zip(to.dims().iter().rev())
            .all(|(&source, &target)| source == target || source == Dim::Size(1));
    if fits {
        Ok(())
    } else {
        Err(Error::Shape(format!("broadcast_to: shape {from} cannot be broadcast to {to}")))
    }
}

/// The shape of the rows that a selection picks from a table.
pub fn gather(table: &Shape, vocabulary: usize, selection: &Shape) -> Result<Shape> {
    let &[rows, columns] = table.dims() else {
        return Err(Error::Shape(format!("gather: shape {table}, wanted a table (rows, columns)")));
    };
    if rows != Dim::Size(vocabulary) {
        return Err(Error::Shape(format!(
            "gather: table {table} has {rows} rows, the selection {selection} picks among {vocabulary}"
        )));
    }
    let mut dims = selection.dims().to_vec();
    dims.push(columns);
    Shape::new(dims)
}

/// Checks the shapes of a cross entropy; `vocabulary` is that of the targets if they are a selection.
pub fn cross_entropy(
    logits: &Shape,
    targets: &Shape,
    vocabulary: Option<usize>,
    mass: Option<&Shape>,
) -> Result<()> {
    let &[rows, columns] = logits.dims() else {
        return Err(Error::Shape(format!("cross_entropy: logits of shape {logits}, wanted (rows, classes)")));
    };
    let fits = match vocabulary {
        Some(classes) => targets.dims() == [rows] && columns == Dim::Size(classes),
        None => targets == logits,
    };
    if !fits {
        let classes = vocabulary.map_or_else(String::new, |classes| format!(" among {classes} classes"));
        return Err(Error::Shape(format!(
            "cross_entropy: logits of shape {logits} and targets of shape {targets}{classes}, \
             wanted a selection (rows,) among as many classes, or weights of the logits' shape"
        )));
    }
    if let Some(mass) = mass
        && mass.dims() != [rows]
    {
        return Err(Error::Shape(format!(
            "cross_entropy: mass of shape {mass}, wanted one number a row of the logits {logits}"
        )));
    }
    Ok(())
}
