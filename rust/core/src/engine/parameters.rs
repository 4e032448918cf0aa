//! Where each parameter lies in the flat state: names and shapes in slot order, one after another in C order.

use serde::{Deserialize, Serialize};

/// Names, shapes and offsets of the parameters of a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    slots: Vec<Slot>,
    elements: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Slot {
    name: String,
    sizes: Vec<usize>,
    offset: usize,
}

impl Layout {
    /// How many parameters.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many floats all of them hold.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The slot of that name.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.slots.iter().position(|slot| slot.name == name)
    }

    /// The name of a slot.
    pub fn name(&self, slot: usize) -> &str {
        &self.slots[slot].name
    }

    /// The shape of a slot.
    pub fn sizes(&self, slot: usize) -> &[usize] {
        &self.slots[slot].sizes
    }

    /// Where a slot lies in the flat state.
    pub fn range(&self, slot: usize) -> std::ops::Range<usize> {
        let Slot { sizes, offset, .. } = &self.slots[slot];
        *offset..offset + sizes.iter().product::<usize>()
    }

    /// Adds a parameter and gives its slot.
    pub fn push(&mut self, name: &str, sizes: Vec<usize>) -> usize {
        let elements = sizes.iter().product::<usize>();
        self.slots.push(Slot { name: name.into(), sizes, offset: self.elements });
        self.elements += elements;
        self.slots.len() - 1
    }
}
