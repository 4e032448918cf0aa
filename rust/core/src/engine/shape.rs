//! Shapes of recorded values: lengths of axes, one of which may be the batch, known only when a run feeds it.

use std::fmt;

use crate::base::error::{Error, Result};

/// The length of one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Dim {
    /// As many as a run feeds.
    Batch,
    /// A fixed length.
    Size(usize),
}

/// The lengths of all axes, outermost first. At most one of them is the batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct Shape(Vec<Dim>);

impl Shape {
    /// A shape of these axes.
    pub fn new(dims: Vec<Dim>) -> Result<Self> {
        let shape = Self(dims);
        if shape.0.iter().filter(|&&dim| dim == Dim::Batch).count() > 1 {
            return Err(Error::Shape(format!("shape {shape} has the batch axis twice")));
        }
        let fixed = shape.0.iter().try_fold(1_usize, |product, dim| match dim {
            Dim::Batch => Some(product),
            Dim::Size(size) => product.checked_mul(*size),
        });
        if fixed.is_none_or(|product| product > isize::MAX as usize / 4) {
            return Err(Error::Shape(format!("shape {shape} has more elements than memory can hold")));
        }
        Ok(shape)
    }

    /// The shape of fixed lengths.
    pub fn fixed(sizes: &[usize]) -> Result<Self> {
        Self::new(sizes.iter().map(|&size| Dim::Size(size)).collect())
    }

    /// The shape of a single number.
    pub fn scalar() -> Self {
        Self(Vec::new())
    }

    /// The axes, outermost first.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// How many axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Whether one axis is the batch.
    pub fn has_batch(&self) -> bool {
        self.0.contains(&Dim::Batch)
    }

    /// The product of the fixed lengths.
    pub fn fixed_elements(&self) -> usize {
        self.0.iter().map(|dim| if let Dim::Size(size) = dim { *size } else { 1 }).product()
    }

    /// The lengths when a run feeds `batch` rows.
    pub fn sizes(&self, batch: usize) -> Vec<usize> {
        self.0.iter().map(|dim| if let Dim::Size(size) = dim { *size } else { batch }).collect()
    }

    /// The number of elements when a run feeds `batch` rows.
    pub fn elements(&self, batch: usize) -> usize {
        self.fixed_elements() * if self.has_batch() { batch } else { 1 }
    }

    /// The axis that `axis` names, counted from the end when negative.
    pub fn axis(&self, axis: i64) -> Result<usize> {
        let rank = self.rank() as i64;
        let index = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&index) {
            Ok(index as usize)
        } else {
            Err(Error::Shape(format!("axis {axis} is out of range for shape {self}")))
        }
    }

    /// The axes that a reduction names, ascending; all of them when none is named.
    pub fn axes(&self, axes: Option<&[i64]>) -> Result<Vec<usize>> {
        let Some(axes) = axes else {
            return Ok((0..self.rank()).collect());
        };
        let mut found = axes.iter().map(|&axis| self.axis(axis)).collect::<Result<Vec<_>>>()?;
        found.sort_unstable();
        if found.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Shape(format!("axes {axes:?} of shape {self} name one axis twice")));
        }
        Ok(found)
    }

    /// This shape with `axes` (ascending) reduced: dropped, or kept with length 1.
    #[must_use]
    pub fn reduced(&self, axes: &[usize], keepdims: bool) -> Self {
        let kept = self.0.iter().enumerate().filter_map(|(axis, &dim)| match axes.contains(&axis) {
            false => Some(dim),
            true if keepdims => Some(Dim::Size(1)),
            true => None,
        });
        Self(kept.collect())
    }

    /// The shape that `dims` name for the elements of this one; one of them may be -1, to be worked out.
    pub fn reshaped(&self, dims: &[Option<Dim>]) -> Result<Self> {
        let text = || {
            let axes: Vec<String> =
                dims.iter().map(|dim| dim.map_or_else(|| "-1".into(), |dim| dim.to_string())).collect();
            format!("({})", axes.join(", "))
        };
        let wrong = || Error::Shape(format!("cannot reshape {self} to {}", text()));
        let known = Self::new(dims.iter().copied().flatten().collect())?;
        let dims = match dims.iter().filter(|dim| dim.is_none()).count() {
            0 => known.0,
            1 => {
                let missing = match (self.has_batch(), known.has_batch()) {
                    (true, true) | (false, false) => {
                        let (all, named) = (self.fixed_elements(), known.fixed_elements());
                        if named == 0 || all % named != 0 {
                            return Err(wrong());
                        }
                        Dim::Size(all / named)
                    }
                    (true, false) if self.fixed_elements() == known.fixed_elements() => Dim::Batch,
                    _ => return Err(wrong()),
                };
                dims.iter().map(|dim| dim.unwrap_or(missing)).collect()
            }
            _ => return Err(Error::Shape(format!("reshape to {}: only one axis can be -1", text()))),
        };
        let shape = Self::new(dims)?;
        if shape.has_batch() != self.has_batch() || shape.fixed_elements() != self.fixed_elements() {
            return Err(wrong());
        }
        Ok(shape)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch => f.write_str("BATCH"),
            Self::Size(size) => size.fmt(f),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (axis, dim) in self.0.iter().enumerate() {
            let comma = if axis > 0 { ", " } else { "" };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str(if self.0.len() == 1 { ",)" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::{Dim, Shape};

    fn shape(dims: &[Dim]) -> Shape {
        Shape::new(dims.to_vec()).unwrap()
    }

    #[test]
    fn shapes_print_as_tuples() {
        assert_eq!(Shape::scalar().to_string(), "()");
        assert_eq!(shape(&[Dim::Batch]).to_string(), "(BATCH,)");
        assert_eq!(shape(&[Dim::Batch, Dim::Size(3)]).to_string(), "(BATCH, 3)");
    }

    #[test]
    fn the_missing_axis_of_a_reshape_is_worked_out() {
        let from = shape(&[Dim::Batch, Dim::Size(3), Dim::Size(10)]);
        let batch = Some(Dim::Batch);
        assert_eq!(from.reshaped(&[batch, None]).unwrap(), shape(&[Dim::Batch, Dim::Size(30)]));
        assert_eq!(from.reshaped(&[None, Some(Dim::Size(30))]).unwrap(), shape(&[Dim::Batch, Dim::Size(30)]));
        assert!(from.reshaped(&[None, None]).is_err());
        assert!(from.reshaped(&[batch, Some(Dim::Size(29))]).is_err());
        assert!(from.reshaped(&[Some(Dim::Size(30))]).is_err());
        assert!(Shape::scalar().reshaped(&[batch]).is_err());
    }

    #[test]
    fn axes_count_from_the_end_and_come_once() {
        let from = shape(&[Dim::Batch, Dim::Size(3)]);
        assert_eq!(from.axes(Some(&[-1, 0])).unwrap(), vec![0, 1]);
        assert_eq!(from.axes(None).unwrap(), vec![0, 1]);
        assert!(from.axes(Some(&[1, -1])).is_err());
        assert!(from.axis(2).is_err());
        assert_eq!(from.reduced(&[0], true), Shape::fixed(&[1, 3]).unwrap());
        assert_eq!(from.reduced(&[0], false), Shape::fixed(&[3]).unwrap());
    }
}
