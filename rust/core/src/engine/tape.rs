//! The tape: operations recorded once, checked as they come, and sealed into a network.

use std::sync::Arc;

use super::network::{Feed, FeedKind, Network, Node, NodeId};
use super::operation::{self, Operation};
use super::parameters::Layout;
use super::shape::Shape;
use crate::base::error::{Error, Result};

/// Shapes and operations under recording. A refused operation leaves it as it was.
#[derive(Debug, Default)]
pub struct Tape {
    nodes: Vec<Node>,
    feeds: Vec<Feed>,
    layout: Layout,
    initial: Vec<f32>,
    constants: Vec<f32>,
}

impl Tape {
    /// How many nodes have been recorded.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing has been recorded.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The shape of a recorded node.
    pub fn shape(&self, node: NodeId) -> &Shape {
        &self.nodes[node].shape
    }

    /// The operation of a recorded node.
    pub fn operation(&self, node: NodeId) -> &Operation {
        &self.nodes[node].operation
    }

    /// A parameter of that name with those initial values, in C order.
    pub fn parameter(&mut self, name: &str, shape: Shape, values: &[f32]) -> Result<NodeId> {
        if name.is_empty() {
            return Err(Error::argument("name", "got '', wanted a name"));
        }
        if self.layout.slot(name).is_some() {
            return Err(Error::Tape(format!("the tape has a parameter '{name}' already")));
        }
        if shape.has_batch() {
            return Err(Error::Shape(format!(
                "parameter '{name}' has shape {shape}: a parameter has no batch axis"
            )));
        }
        let sizes = shape.sizes(0);
        if shape.elements(0) != values.len() {
            return Err(Error::DimensionMismatch { expected: shape.elements(0), actual: values.len() });
        }
        let slot = self.layout.push(name, sizes);
        self.initial.extend_from_slice(values);
        Ok(self.push(Operation::Parameter(slot), vec![], shape))
    }

    /// Floats that every run feeds.
    pub fn input(&mut self, name: &str, shape: Shape) -> Result<NodeId> {
        let feed = self.feed(name, shape.clone(), FeedKind::Float)?;
        Ok(self.push(Operation::Input(feed), vec![], shape))
    }

    /// Whole numbers below `vocabulary` that every run feeds.
    pub fn selection(&mut self, name: &str, vocabulary: usize, shape: Shape) -> Result<NodeId> {
        if vocabulary == 0 || u32::try_from(vocabulary).is_err() {
            let message = format!("got {vocabulary}, wanted a whole number of 1 to 2**32 - 1");
            return Err(Error::argument("vocabulary", message));
        }
        let feed = self.feed(name, shape.clone(), FeedKind::Index { vocabulary })?;
        Ok(self.push(Operation::Selection(feed), vec![], shape))
    }

    /// Fixed values.
    pub fn constant(&mut self, values: &[f32], sizes: &[usize]) -> Result<NodeId> {
        let shape = Shape::fixed(sizes)?;
        if shape.elements(0) != values.len() {
            return Err(Error::DimensionMismatch { expected: shape.elements(0), actual: values.len() });
        }
        let offset = self.constants.len();
        self.constants.extend_from_slice(values);
        Ok(self.push(Operation::Constant(offset), vec![], shape))
    }

    /// An elementwise operation of one value: neg, tanh, relu, exp, log, sqrt.
    pub fn unary(&mut self, operation: Operation, a: NodeId) -> Result<NodeId> {
        let shape = self.float(&operation, a)?.clone();
        Ok(self.push(operation, vec![a], shape))
    }

    /// An elementwise operation of two values: add, sub, mul, div.
    pub fn binary(&mut self, operation: Operation, a: NodeId, b: NodeId) -> Result<NodeId> {
        let scalars = [a, b]
            .map(|node| operation::is_scalar_constant(&self.nodes[node].operation, &self.nodes[node].shape));
        let (left, right) = (self.float(&operation, a)?, self.float(&operation, b)?);
        let shape = operation::elementwise(operation.name(), left, right, scalars)?;
        Ok(self.push(operation, vec![a, b], shape))
    }

    /// The same with a number on one side.
    pub fn binary_with_number(
        &mut self,
        operation: Operation,
        a: NodeId,
        number: f32,
        number_first: bool,
    ) -> Result<NodeId> {
        self.float(&operation, a)?;
        let number = self.constant(&[number], &[])?;
        let (left, right) = if number_first { (number, a) } else { (a, number) };
        self.binary(operation, left, right)
    }

    /// The product of two matrices.
    pub fn matmul(&mut self, a: NodeId, b: NodeId) -> Result<NodeId> {
        let operation = Operation::Matmul;
        let shape = operation::matmul(self.float(&operation, a)?, self.float(&operation, b)?)?;
        Ok(self.push(operation, vec![a, b], shape))
    }

    /// The sum over `axes`, or over all.
    pub fn sum(&mut self, a: NodeId, axes: Option<&[i64]>, keepdims: bool) -> Result<NodeId> {
        self.reduction(Operation::Sum, a, axes, keepdims)
    }

    /// The mean over `axes`, or over all.
    pub fn mean(&mut self, a: NodeId, axes: Option<&[i64]>, keepdims: bool) -> Result<NodeId> {
        self.reduction(Operation::Mean, a, axes, keepdims)
    }

    fn reduction(
        &mut self,
        operation: impl Fn(Vec<usize>) -> Operation,
        a: NodeId,
        axes: Option<&[i64]>,
        keepdims: bool,
    ) -> Result<NodeId> {
        let shape = self.float(&operation(vec![]), a)?;
        let axes = shape.axes(axes)?;
        let shape = shape.reduced(&axes, keepdims);
        Ok(self.push(operation(axes), vec![a], shape))
    }

    /// The same elements under another shape; one axis may be left to be worked out.
    pub fn reshape(&mut self, a: NodeId, dims: &[Option<super::shape::Dim>]) -> Result<NodeId> {
        let shape = self.float(&Operation::Reshape, a)?.reshaped(dims)?;
        Ok(self.push(Operation::Reshape, vec![a], shape))
    }

    /// Permuted axes; reversed when none are named.
    pub fn transpose(&mut self, a: NodeId, axes: Option<&[i64]>) -> Result<NodeId> {
        let shape = self.float(&Operation::Transpose(vec![]), a)?;
        let (permutation, shape) = operation::transpose(shape, axes)?;
        Ok(self.push(Operation::Transpose(permutation), vec![a], shape))
    }

    /// Repeated to `shape`.
    pub fn broadcast_to(&mut self, a: NodeId, shape: Shape) -> Result<NodeId> {
        operation::broadcast(self.float(&Operation::BroadcastTo, a)?, &shape)?;
        Ok(self.push(Operation::BroadcastTo, vec![a], shape))
    }

    /// The rows of `table` that `selection` picks.
    pub fn gather(&mut self, table: NodeId, selection: NodeId) -> Result<NodeId> {
        let rows = self.float(&Operation::Gather, table)?;
        let Some(vocabulary) = self.vocabulary(selection) else {
            return Err(Error::Tape(format!(
                "gather picks rows with a selection, got {}; record one with tape.selection(...)",
                self.describe(selection)
            )));
        };
        let shape = operation::gather(rows, vocabulary, self.shape(selection))?;
        Ok(self.push(Operation::Gather, vec![table, selection], shape))
    }

    /// softmax along an axis.
    pub fn softmax(&mut self, a: NodeId, axis: i64) -> Result<NodeId> {
        self.along(Operation::Softmax, a, axis)
    }

    /// Logarithm of softmax along an axis.
    pub fn log_softmax(&mut self, a: NodeId, axis: i64) -> Result<NodeId> {
        self.along(Operation::LogSoftmax, a, axis)
    }

    fn along(&mut self, operation: impl Fn(usize) -> Operation, a: NodeId, axis: i64) -> Result<NodeId> {
        let shape = self.float(&operation(0), a)?.clone();
        let axis = shape.axis(axis)?;
        Ok(self.push(operation(axis), vec![a], shape))
    }

    /// Logarithm of the sum of exponentials along an axis.
    pub fn logsumexp(&mut self, a: NodeId, axis: i64, keepdims: bool) -> Result<NodeId> {
        let shape = self.float(&Operation::LogSumExp(0), a)?;
        let axis = shape.axis(axis)?;
        let shape = shape.reduced(&[axis], keepdims);
        Ok(self.push(Operation::LogSumExp(axis), vec![a], shape))
    }

    /// Mean cross entropy of logits against a selection or weights, with an optional mass a row.
    pub fn cross_entropy(&mut self, logits: NodeId, targets: NodeId, mass: Option<NodeId>) -> Result<NodeId> {
        let operation = Operation::CrossEntropy;
        let rows = self.float(&operation, logits)?;
        let vocabulary = self.vocabulary(targets);
        let mass_shape = mass.map(|mass| self.float(&operation, mass)).transpose()?;
        operation::cross_entropy(rows, self.shape(targets), vocabulary, mass_shape)?;
        for (node, what) in [(Some(targets), "targets"), (mass, "mass")] {
            if let Some(node) = node
                && self.nodes[node].differentiable
            {
                return Err(Error::Tape(format!(
                    "cross_entropy: {what} depend on a parameter, and no gradient is defined for them; \
                     feed them, or write the loss with log_softmax"
                )));
            }
        }
        let inputs = [logits, targets].into_iter().chain(mass).collect();
        Ok(self.push(operation, inputs, Shape::scalar()))
    }

    /// Ends the recording.
    pub fn seal(self) -> Network {
        Network::new(self.nodes, self.feeds, Arc::new(self.layout), self.initial, self.constants)
    }

    /// A node as error messages name it.
    pub fn describe(&self, node: NodeId) -> String {
        let Node { operation, shape, .. } = &self.nodes[node];
        match operation {
            Operation::Parameter(slot) => format!("parameter '{}' {shape}", self.layout.name(*slot)),
            Operation::Input(feed) | Operation::Selection(feed) => {
                format!("{} '{}' {shape}", operation.name(), self.feeds[*feed].name)
            }
            _ => format!("{} {shape}", operation.name()),
        }
    }

    fn feed(&mut self, name: &str, shape: Shape, kind: FeedKind) -> Result<usize> {
        if name.is_empty() {
            return Err(Error::argument("name", "got '', wanted a name"));
        }
        if self.feeds.iter().any(|feed| feed.name == name) {
            return Err(Error::Tape(format!("the tape has a feed '{name}' already")));
        }
        self.feeds.push(Feed { name: name.into(), shape, kind });
        Ok(self.feeds.len() - 1)
    }

    fn vocabulary(&self, node: NodeId) -> Option<usize> {
        let Operation::Selection(feed) = self.nodes[node].operation else {
            return None;
        };
        match self.feeds[feed].kind {
            FeedKind::Index { vocabulary } => Some(vocabulary),
            FeedKind::Float => None,
        }
    }

    fn float(&self, operation: &Operation, node: NodeId) -> Result<&Shape> {
        if matches!(self.nodes[node].operation, Operation::Selection(_)) {
            return Err(Error::Tape(format!(
                "{} takes floats, got {}; a selection picks rows with gather, or classes in cross_entropy",
                operation.name(),
                self.describe(node)
            )));
        }
        Ok(&self.nodes[node].shape)
    }

    fn push(&mut self, operation: Operation, inputs: Vec<NodeId>, shape: Shape) -> NodeId {
        let differentiable = matches!(operation, Operation::Parameter(_))
            || inputs.iter().any(|&input| self.nodes[input].differentiable);
        self.nodes.push(Node { operation, inputs, shape, differentiable });
        self.nodes.len() - 1
    }
}
