//! An entry into a network: the nodes that a loss and the observed values need, and the place of every value.
//!
//! Places are worked out once a batch size. Values lie in one buffer in the order they are computed, so that a node
//! writes above everything it reads; gradients lie the same way, and those of parameters go straight into the flat
//! gradient. A reshape has no place of its own.

use std::sync::Arc;

use super::kernels::matmul::{pack, pack_transposed, panels_len};
use super::kernels::rows::Row;
use super::network::{FeedValue, Network, NodeId};
use super::operation::Operation;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;
use crate::base::memory::try_vec;

/// The nodes that a loss and observed values need, in order.
#[derive(Debug, Clone)]
pub struct Entry {
    network: Arc<Network>,
    loss: Option<NodeId>,
    observed: Vec<NodeId>,
    order: Vec<NodeId>,
    feeds: Vec<usize>,
    packings: Vec<Packing>,
    packed_len: usize,
}

/// A product whose right operand is a parameter, packed once a parameter state.
#[derive(Debug, Clone)]
struct Packing {
    node: NodeId,
    parameter: usize,
    depth: usize,
    columns: usize,
    offset: usize,
    transposed: Option<usize>,
}

/// Right operands of products, packed from one state of the parameters.
#[derive(Debug, Clone, Default)]
pub struct Packed {
    panels: Vec<f32>,
}

/// Where a node's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    Parameter(usize),
    Feed(usize),
    Constant(usize),
    Value(usize),
}

/// Where a node's gradient goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GradientPlace {
    Nowhere,
    Parameter(usize),
    Buffer(usize),
}

/// Buffers of one run of an entry, for one batch size.
#[derive(Debug, Clone)]
pub struct Workspace {
    pub(super) batch: usize,
    pub(super) places: Vec<Place>,
    pub(super) gradient_places: Vec<GradientPlace>,
    pub(super) sizes: Vec<Vec<usize>>,
    pub(super) values: Vec<f32>,
    pub(super) gradients: Vec<f32>,
    /// Exponentials of the loss's rows, kept for the way back.
    pub(super) exponentials: Vec<Vec<f32>>,
    pub(super) rows: Vec<Vec<Row>>,
    pub(super) panels: Vec<f32>,
    /// Total mass of the loss's rows, if it is a cross entropy.
    pub(super) mass: Option<f32>,
}

impl Entry {
    /// The part of `network` that `loss` and the observed nodes need.
    pub fn new(network: Arc<Network>, loss: Option<NodeId>, observe: &[NodeId]) -> Result<Self> {
        let nodes = network.nodes();
        if let Some(loss) = loss
            && nodes[loss].shape.rank() != 0
        {
            return Err(Error::Shape(format!(
                "the loss has shape {}, wanted a single number; reduce it with .mean() or .sum()",
                nodes[loss].shape
            )));
        }
        let mut needed = vec![false; nodes.len()];
        for &root in loss.iter().chain(observe) {
            if matches!(nodes[root].operation, Operation::Selection(_)) {
                return Err(Error::Tape(format!("cannot observe {}: it is fed", network.describe(root))));
            }
            needed[root] = true;
        }
        let mut towards_loss = vec![false; nodes.len()];
        if let Some(loss) = loss {
            towards_loss[loss] = true;
        }
        for node in (0..nodes.len()).rev() {
            if needed[node] {
                nodes[node].inputs.iter().for_each(|&input| needed[input] = true);
            }
            if towards_loss[node] {
                nodes[node].inputs.iter().for_each(|&input| towards_loss[input] = true);
            }
        }
        let order: Vec<NodeId> = (0..nodes.len()).filter(|&node| needed[node]).collect();
        let mut feeds: Vec<usize> = order
            .iter()
            .filter_map(|&node| match nodes[node].operation {
                Operation::Input(feed) | Operation::Selection(feed) => Some(feed),
                _ => None,
            })
            .collect();
        feeds.sort_unstable();
        let mut packings = Vec::new();
        let mut packed_len = 0;
        for &node in &order {
            if nodes[node].operation != Operation::Matmul {
                continue;
            }
            let right = &nodes[nodes[node].inputs[1]];
            let Operation::Parameter(slot) = right.operation else {
                continue;
            };
            let sizes = right.shape.sizes(0);
            let (depth, columns) = (sizes[0], sizes[1]);
            let offset = packed_len;
            packed_len += panels_len(depth, columns);
            let transposed = (towards_loss[node] && nodes[nodes[node].inputs[0]].differentiable).then(|| {
                let offset = packed_len;
                packed_len += panels_len(columns, depth);
                offset
            });
            let parameter = network.layout().range(slot).start;
            packings.push(Packing { node, parameter, depth, columns, offset, transposed });
        }
        Ok(Self { network, loss, observed: observe.to_vec(), order, feeds, packings, packed_len })
    }

    /// The network it enters.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// The loss, if it has one.
    pub fn loss(&self) -> Option<NodeId> {
        self.loss
    }

    /// The observed nodes.
    pub fn observed(&self) -> &[NodeId] {
        &self.observed
    }

    /// The nodes a run computes, in order.
    pub(super) fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// The feeds a run needs, ascending.
    pub fn feeds(&self) -> &[usize] {
        &self.feeds
    }

    /// Packs the right operands of products from a state of the parameters.
    pub fn pack(&self, exec: &Exec<'_>, parameters: &[f32], packed: &mut Packed) -> Result<()> {
        if packed.panels.len() != self.packed_len {
            packed.panels = try_vec(self.packed_len)?;
        }
        for packing in &self.packings {
            let &Packing { parameter, depth, columns, offset, transposed, .. } = packing;
            let matrix = &parameters[parameter..parameter + depth * columns];
            let panels = &mut packed.panels[offset..offset + panels_len(depth, columns)];
            pack(exec.level(), matrix, depth, columns, panels);
            if let Some(offset) = transposed {
                let panels = &mut packed.panels[offset..offset + panels_len(columns, depth)];
                pack_transposed(exec.level(), matrix, columns, depth, panels);
            }
        }
        Ok(())
    }

    /// The packed right operand of a product, if it is a parameter.
    pub(super) fn packed_right<'p>(&self, packed: &'p Packed, node: NodeId) -> Option<&'p [f32]> {
        let packing = self.packing(node)?;
        Some(&packed.panels[packing.offset..packing.offset + panels_len(packing.depth, packing.columns)])
    }

    /// The packed transpose of the right operand of a product, if it is a parameter.
    pub(super) fn packed_transpose<'p>(&self, packed: &'p Packed, node: NodeId) -> Option<&'p [f32]> {
        let packing = self.packing(node)?;
        let offset = packing.transposed?;
        Some(&packed.panels[offset..offset + panels_len(packing.columns, packing.depth)])
    }

    fn packing(&self, node: NodeId) -> Option<&Packing> {
        self.packings.iter().find(|packing| packing.node == node)
    }

    /// Buffers for runs with `batch` rows.
    pub fn workspace(&self, batch: usize) -> Result<Workspace> {
        let nodes = self.network.nodes();
        let too_large = || Error::Memory { bytes: usize::MAX };
        let mut places = vec![Place::Nowhere; nodes.len()];
        let mut gradient_places = vec![GradientPlace::Nowhere; nodes.len()];
        let mut sizes = vec![Vec::new(); nodes.len()];
        let (mut values, mut gradients) = (0_usize, 0_usize);
        for &node in &self.order {
            let recorded = &nodes[node];
            sizes[node] = recorded.shape.sizes(batch);
            let elements = sizes[node]
                .iter()
                .try_fold(1_usize, |product, &size| product.checked_mul(size))
                .ok_or_else(too_large)?;
            match recorded.operation {
                Operation::Parameter(slot) => {
                    let offset = self.network.layout().range(slot).start;
                    places[node] = Place::Parameter(offset);
                    gradient_places[node] = GradientPlace::Parameter(offset);
                }
                Operation::Input(feed) | Operation::Selection(feed) => places[node] = Place::Feed(feed),
                Operation::Constant(offset) => places[node] = Place::Constant(offset),
                Operation::Reshape => {
                    places[node] = places[recorded.inputs[0]];
                    gradient_places[node] = gradient_places[recorded.inputs[0]];
                }
                _ => {
                    places[node] = Place::Value(values);
                    values = values.checked_add(elements).ok_or_else(too_large)?;
                    if recorded.differentiable {
                        gradient_places[node] = GradientPlace::Buffer(gradients);
                        gradients = gradients.checked_add(elements).ok_or_else(too_large)?;
                    }
                }
            }
        }
        Ok(Workspace {
            batch,
            places,
            gradient_places,
            sizes,
            values: try_vec(values)?,
            gradients: if self.loss.is_some() { try_vec(gradients)? } else { Vec::new() },
            exponentials: vec![Vec::new(); nodes.len()],
            rows: vec![Vec::new(); nodes.len()],
            panels: Vec::new(),
            mass: None,
        })
    }

    /// Nanoseconds that a pass over `batch` rows takes on one thread, roughly.
    pub fn estimate(&self, batch: usize) -> f64 {
        let nodes = self.network.nodes();
        let elements = |node: NodeId| nodes[node].shape.elements(batch) as f64;
        let one = |&node: &NodeId| match nodes[node].operation {
            Operation::Matmul => {
                let depth = nodes[nodes[node].inputs[0]].shape.sizes(batch)[1];
                elements(node) * depth as f64 * 0.1
            }
            Operation::Parameter(_) | Operation::Constant(_) => 0.0,
            _ => elements(node) * 2.0,
        };
        self.order.iter().map(one).sum::<f64>() + self.packed_len as f64
    }

    /// The value of a node after a run.
    pub fn value<'w>(
        &'w self,
        workspace: &'w Workspace,
        parameters: &'w [f32],
        feeds: &[FeedValue<'w>],
        node: NodeId,
    ) -> Result<&'w [f32]> {
        let len = workspace.sizes[node].iter().product();
        resolve(workspace.places[node], len, &workspace.values, &self.network, parameters, feeds)
    }
}

impl Workspace {
    /// How many rows its runs have.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The lengths of a node's axes.
    pub fn sizes(&self, node: NodeId) -> &[usize] {
        &self.sizes[node]
    }

    /// The mass of the loss after a run: the total mass of a cross entropy's rows, or else the number of rows.
    pub fn mass(&self) -> f32 {
        self.mass.unwrap_or(self.batch as f32)
    }
}

/// The value at a place; `values` holds those computed so far.
pub(super) fn resolve<'w>(
    place: Place,
    len: usize,
    values: &'w [f32],
    network: &'w Network,
    parameters: &'w [f32],
    feeds: &[FeedValue<'w>],
) -> Result<&'w [f32]> {
    let part = match place {
        Place::Value(offset) => values.get(offset..offset + len),
        Place::Parameter(offset) => parameters.get(offset..offset + len),
        Place::Constant(offset) => network.constants().get(offset..offset + len),
        Place::Feed(feed) => match feeds[feed] {
            FeedValue::Float(values) if values.len() == len => Some(values),
            _ => None,
        },
        Place::Nowhere => None,
    };
    part.ok_or_else(|| Error::Internal(format!("no value at {place:?}")))
}
