//! The samples a trainer goes through: one array a feed, the sample axis first.

use crate::base::error::{Error, Result};
use crate::engine::network::{FeedKind, FeedValue, Network};
use crate::engine::shape::Dim;

/// The values of one feed for all samples, or for all runs when the feed has no batch axis.
#[derive(Debug, Clone)]
pub enum Column {
    /// Floats, in C order.
    Float(Vec<f32>),
    /// Indices below the feed's vocabulary, in C order.
    Index(Vec<u32>),
}

/// A column a feed of a network, each with the shape it came in.
pub type Columns = Vec<Option<(Column, Vec<usize>)>>;

/// All samples.
#[derive(Debug, Clone)]
pub struct Samples {
    count: usize,
    /// A column a feed of the network, with how many values a sample has (`None`: not by sample).
    columns: Vec<Option<(Column, Option<usize>)>>,
}

impl Samples {
    /// Takes the columns of `network`'s feeds with the shapes they came in, `needed` being those that must be there.
    pub fn new(network: &Network, needed: &[usize], mut columns: Columns) -> Result<Self> {
        let mut count: Option<(usize, &str)> = None;
        let mut kept = Vec::with_capacity(columns.len());
        for (index, feed) in network.feeds().iter().enumerate() {
            let Some((column, sizes)) = columns.get_mut(index).and_then(Option::take) else {
                if needed.contains(&index) {
                    return Err(Error::argument("data", format!("feed '{}' is missing", feed.name)));
                }
                kept.push(None);
                continue;
            };
            let fits = matches!(
                (&column, feed.kind),
                (Column::Float(_), FeedKind::Float) | (Column::Index(_), FeedKind::Index { .. })
            );
            if !fits {
                return Err(Error::Internal(format!("feed '{}' came as another kind", feed.name)));
            }
            let batch = network.feed_batch(index, &sizes)?;
            let per_sample = match batch {
                None => None,
                Some(_) if feed.shape.dims()[0] != Dim::Batch => {
                    return Err(Error::Shape(format!(
                        "feed '{}' of shape {}: a trainer needs the batch axis first",
                        feed.name, feed.shape
                    )));
                }
                Some(rows) => {
                    if let Some((before, name)) = count
                        && before != rows
                    {
                        return Err(Error::Shape(format!(
                            "feeds '{name}' and '{}' have {before} and {rows} samples",
                            feed.name
                        )));
                    }
                    count = Some((rows, &feed.name));
                    Some(feed.shape.fixed_elements())
                }
            };
            kept.push(Some((column, per_sample)));
        }
        let Some((count, _)) = count else {
            return Err(Error::argument("data", "no feed has a batch axis, so there are no samples"));
        };
        Ok(Self { count, columns: kept })
    }

    /// How many samples.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The feeds of `rows` samples from `start`.
    pub fn feeds(&self, start: usize, rows: usize) -> Vec<FeedValue<'_>> {
        self.columns
            .iter()
            .map(|column| {
                let Some((column, per_sample)) = column else { return FeedValue::Missing };
                match (column, per_sample) {
                    (Column::Float(values), None) => FeedValue::Float(values),
                    (Column::Index(values), None) => FeedValue::Index(values),
                    (Column::Float(values), Some(n)) => {
                        FeedValue::Float(&values[start * n..(start + rows) * n])
                    }
                    (Column::Index(values), Some(n)) => {
                        FeedValue::Index(&values[start * n..(start + rows) * n])
                    }
                }
            })
            .collect()
    }
}
