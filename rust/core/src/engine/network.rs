//! The sealed network: nodes in the order they were recorded, and no values but the initial ones.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::operation::Operation;
use super::parameters::Layout;
use super::shape::Shape;
use crate::base::error::{Error, Result};

/// A node's number: its place in the recording.
pub type NodeId = usize;

/// One recorded operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// What it computes.
    pub operation: Operation,
    /// The nodes it takes, all recorded before it.
    pub inputs: Vec<NodeId>,
    /// The shape of its value.
    pub shape: Shape,
    /// Whether its value depends on a parameter.
    pub differentiable: bool,
}

/// What a feed holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FeedKind {
    /// Floats.
    Float,
    /// Whole numbers below the vocabulary.
    Index {
        /// How many there are to choose from.
        vocabulary: usize,
    },
}

/// A value that every run brings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Feed {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// What it holds.
    pub kind: FeedKind,
}

/// What a run brings for one feed.
#[derive(Debug, Clone, Copy)]
pub enum FeedValue<'a> {
    /// Nothing.
    Missing,
    /// Floats, in C order.
    Float(&'a [f32]),
    /// Indices, in C order, all below the vocabulary.
    Index(&'a [u32]),
}

/// An immutable network, shared by threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Network {
    nodes: Vec<Node>,
    feeds: Vec<Feed>,
    layout: Arc<Layout>,
    initial: Vec<f32>,
    constants: Vec<f32>,
}

impl Network {
    pub(super) fn new(
        nodes: Vec<Node>,
        feeds: Vec<Feed>,
        layout: Arc<Layout>,
        initial: Vec<f32>,
        constants: Vec<f32>,
    ) -> Self {
        Self { nodes, feeds, layout, initial, constants }
    }

    /// Refuses a network, read back from bytes, whose parts do not refer to each other as a recording makes them.
    pub fn validate(&self) -> Result<()> {
        let known = |(index, node): (usize, &Node)| {
            let place = match node.operation {
                Operation::Parameter(slot) => slot < self.layout.len(),
                Operation::Input(feed) | Operation::Selection(feed) => feed < self.feeds.len(),
                Operation::Constant(offset) => {
                    offset.checked_add(node.shape.elements(0)).is_some_and(|end| end <= self.constants.len())
                }
                _ => !node.inputs.is_empty(),
            };
            place && node.inputs.iter().all(|&input| input < index)
        };
        let whole = self.initial.len() == self.layout.elements();
        if whole && self.nodes.iter().enumerate().all(known) {
            Ok(())
        } else {
            Err(Error::argument("bytes", "not a recorded network: its parts do not fit together"))
        }
    }

    /// All nodes, in the order they were recorded.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All feeds, in the order they were recorded.
    pub fn feeds(&self) -> &[Feed] {
        &self.feeds
    }

    /// Where each parameter lies.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The initial values of all parameters, flat.
    pub fn initial(&self) -> &[f32] {
        &self.initial
    }

    /// The values of all constants.
    pub fn constants(&self) -> &[f32] {
        &self.constants
    }

    /// A node as error messages name it.
    pub fn describe(&self, node: NodeId) -> String {
        let Node { operation, shape, .. } = &self.nodes[node];
        let name = operation.name();
        match operation {
            Operation::Parameter(slot) => format!("{name} '{}' {shape}", self.layout.name(*slot)),
            Operation::Input(feed) | Operation::Selection(feed) => {
                format!("{name} '{}' {shape}", self.feeds[*feed].name)
            }
            _ => format!("{name} {shape}"),
        }
    }

    /// The batch that a feed of `sizes` brings, if it has that axis.
    pub fn feed_batch(&self, feed: usize, sizes: &[usize]) -> Result<Option<usize>> {
        let Feed { name, shape, .. } = &self.feeds[feed];
        let mut batch = None;
        let fits = sizes.len() == shape.rank()
            && shape.dims().iter().zip(sizes).all(|(dim, &size)| match dim {
                super::shape::Dim::Batch => {
                    batch = Some(size);
                    true
                }
                super::shape::Dim::Size(wanted) => *wanted == size,
            });
        if !fits {
            let came = Shape::fixed(sizes)?;
            return Err(Error::Shape(format!("feed '{name}': got an array of shape {came}, wanted {shape}")));
        }
        if batch == Some(0) {
            return Err(Error::Shape(format!("feed '{name}': the batch is empty")));
        }
        Ok(batch)
    }

    /// Indices of a feed as the engine holds them; an index outside the vocabulary is refused.
    pub fn feed_indices(&self, feed: usize, values: &[i64]) -> Result<Vec<u32>> {
        let Feed { name, kind, .. } = &self.feeds[feed];
        let FeedKind::Index { vocabulary } = *kind else {
            return Err(Error::Internal(format!("feed '{name}' holds floats")));
        };
        values
            .iter()
            .enumerate()
            .map(|(place, &value)| {
                u32::try_from(value).ok().filter(|&index| (index as usize) < vocabulary).ok_or_else(|| {
                    Error::argument(
                        name.as_str(),
                        format!(
                            "index {value} at position {place} is outside the vocabulary of {vocabulary}, \
                             wanted 0 to {}",
                            vocabulary - 1
                        ),
                    )
                })
            })
            .collect()
    }
}
