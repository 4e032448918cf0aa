//! Dynamic loss scaling: keeps small gradients above what a narrow format flushes to zero.
//!
//! The loss is multiplied by the scale before the backward pass and the gradients are divided by it afterwards
//! (Micikevicius et al., "Mixed Precision Training", ICLR 2018). A step whose gradients overflow multiplies the scale by
//! the backoff factor; a run of `growth_interval` steps without one multiplies it by the growth factor. All in float32,
//! and always within the limits: without them the scale can reach 0 or infinity and never return.

use super::elementwise::{update, update_and_find};
use super::finite::has_nan_or_inf;
use crate::base::error::{Error, Result};
use crate::base::exec::Exec;

/// Everything a [`LossScaler`] is made of, as saved and restored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// What the loss is multiplied by.
    pub scale: f32,
    /// What the scale is multiplied by after `growth_interval` clean steps in a row.
    pub growth_factor: f32,
    /// What the scale is multiplied by after an overflow.
    pub backoff_factor: f32,
    /// Clean steps in a row before the scale grows.
    pub growth_interval: u64,
    /// The scale never falls below it.
    pub min_scale: f32,
    /// The scale never rises above it.
    pub max_scale: f32,
    /// Clean steps since the last change of the scale.
    pub growth_tracker: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            min_scale: 1.0,
            max_scale: 16_777_216.0,
            growth_tracker: 0,
        }
    }
}

impl State {
    /// `scale_name` is what the caller calls the scale: `initial_scale` when constructed, `scale` when restored.
    fn check(&self, scale_name: &str) -> Result<()> {
        let refuse = |name: &str, value: f32, wanted: &str| {
            Err(Error::argument(name, format!("got {value}, wanted {wanted}")))
        };
        if !(self.growth_factor > 1.0 && self.growth_factor.is_finite()) {
            return refuse("growth_factor", self.growth_factor, "a finite number above 1");
        }
        if !(self.backoff_factor > 0.0 && self.backoff_factor < 1.0) {
            return refuse("backoff_factor", self.backoff_factor, "a number between 0 and 1");
        }
        if self.growth_interval == 0 {
            return Err(Error::argument("growth_interval", "got 0, wanted a whole number of at least 1"));
        }
        if !(self.min_scale > 0.0 && self.min_scale.is_finite()) {
            return refuse("min_scale", self.min_scale, "a finite number above 0");
        }
        if !(self.max_scale >= self.min_scale && self.max_scale.is_finite()) {
            let wanted = format!("a finite number of at least min_scale, which is {}", self.min_scale);
            return refuse("max_scale", self.max_scale, &wanted);
        }
        if !(self.scale >= self.min_scale && self.scale <= self.max_scale) {
            let wanted = format!(
                "a number from min_scale to max_scale, {} to {}; set them to allow it",
                self.min_scale, self.max_scale
            );
            return refuse(scale_name, self.scale, &wanted);
        }
        if self.growth_tracker >= self.growth_interval {
            let message = format!(
                "got {}, wanted less than growth_interval, which is {}",
                self.growth_tracker, self.growth_interval
            );
            return Err(Error::argument("growth_tracker", message));
        }
        Ok(())
    }
}

/// A loss scale that follows the overflows of training.
#[derive(Debug, Clone, PartialEq)]
pub struct LossScaler {
    state: State,
}

impl LossScaler {
    /// A scaler that starts with these values; errors call the scale `initial_scale`.
    pub fn new(state: State) -> Result<Self> {
        state.check("initial_scale")?;
        Ok(Self { state })
    }

    /// Everything needed to go on elsewhere.
    pub fn state(&self) -> State {
        self.state
    }

    /// Goes on from a saved state, or changes nothing if that has no meaning.
    pub fn restore(&mut self, state: State) -> Result<()> {
        state.check("scale")?;
        self.state = state;
        Ok(())
    }

    /// `loss * scale`.
    pub fn scale_loss(&self, loss: f32) -> f32 {
        loss * self.state.scale
    }

    /// Takes note of a step: `overflow` tells whether its gradients held a NaN or an infinity.
    pub fn update(&mut self, overflow: bool) {
        let state = &mut self.state;
        let factor = if overflow {
            state.backoff_factor
        } else if state.growth_tracker + 1 >= state.growth_interval {
            state.growth_factor
        } else {
            state.growth_tracker += 1;
            return;
        };
        state.growth_tracker = 0;
        // The product may overflow to infinity; the limit brings it back.
        state.scale = (state.scale * factor).clamp(state.min_scale, state.max_scale);
    }
}

/// `gradients[i] /= scale`, in place.
///
/// A division, not a product with the inverse: each element is rounded once, and the pass waits for memory either way.
/// It cannot be interrupted, since gradients that are half divided are good for nothing.
pub fn unscale_gradients(exec: &Exec<'_>, gradients: &mut [f32], scale: f32) -> Result<()> {
    update(&exec.to_the_end(), gradients, |gradient| gradient / scale)
}

/// [`unscale_gradients`], and whether any quotient is a NaN or an infinity, in the same read.
pub fn unscale_and_check(exec: &Exec<'_>, gradients: &mut [f32], scale: f32) -> Result<bool> {
    update_and_find(&exec.to_the_end(), gradients, |gradient| gradient / scale, |value| !value.is_finite())
}

/// Whether the gradients overflowed: any NaN or infinity.
pub fn check_overflow(exec: &Exec<'_>, gradients: &[f32]) -> Result<bool> {
    has_nan_or_inf(exec, gradients)
}

#[cfg(test)]
mod tests {
    use super::{LossScaler, State, check_overflow, unscale_and_check, unscale_gradients};
    use crate::base::error::Error;
    use crate::base::exec::tests::everywhere;
    use crate::numeric::elementwise::tests::lengths;

    fn walk(state: State, updates: &str) -> Vec<f32> {
        let mut scaler = LossScaler::new(state).unwrap();
        let mut step = |update| {
            scaler.update(update == '!');
            scaler.state().scale
        };
        updates.chars().map(&mut step).collect()
    }

    #[test]
    fn the_golden_walk_of_nine_thousand_updates() {
        let mut scaler = LossScaler::new(State::default()).unwrap();
        let mut scales = vec![scaler.state().scale];
        for i in 0..9000 {
            scaler.update(i % 3001 == 1500);
            if (i + 1) % 500 == 0 {
                scales.push(scaler.state().scale);
            }
        }
        let (high, low) = (65536.0, 32768.0);
        let golden = [
            high, high, high, high, low, low, low, low, high, high, low, low, low, low, high, high, low, low,
            low,
        ];
        assert_eq!(scales, golden);
    }

    #[test]
    fn the_scale_stays_within_its_limits_and_comes_back() {
        let state =
            State { scale: 8.0, growth_interval: 1, min_scale: 3.0, max_scale: 20.0, ..State::default() };
        assert_eq!(walk(state, "!!!...."), [4.0, 3.0, 3.0, 6.0, 12.0, 20.0, 20.0]);
        let vast = State { growth_factor: f32::MAX, growth_interval: 1, ..State::default() };
        assert_eq!(walk(vast, ".!"), [16_777_216.0, 8_388_608.0]);
    }

    #[test]
    fn overflow_and_growth_start_the_count_again() {
        let state = State { scale: 8.0, growth_interval: 3, ..State::default() };
        assert_eq!(walk(state, "..!...!.."), [8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 4.0, 4.0, 4.0]);
        let state = State { scale: 8.0, growth_interval: 2, ..State::default() };
        assert_eq!(walk(state, "....."), [8.0, 16.0, 16.0, 32.0, 32.0]);
    }

    #[test]
    fn values_without_meaning_are_refused_by_name() {
        let fine = State::default();
        let cases = [
            ("initial_scale", State { scale: 0.0, ..fine }),
            ("initial_scale", State { scale: f32::NAN, ..fine }),
            ("initial_scale", State { scale: f32::INFINITY, ..fine }),
            ("growth_factor", State { growth_factor: 1.0, ..fine }),
            ("growth_factor", State { growth_factor: f32::NAN, ..fine }),
            ("growth_factor", State { growth_factor: f32::INFINITY, ..fine }),
            ("backoff_factor", State { backoff_factor: 1.0, ..fine }),
            ("backoff_factor", State { backoff_factor: 0.0, ..fine }),
            ("backoff_factor", State { backoff_factor: f32::NAN, ..fine }),
            ("growth_interval", State { growth_interval: 0, ..fine }),
            ("min_scale", State { min_scale: 0.0, ..fine }),
            ("min_scale", State { min_scale: f32::NAN, ..fine }),
            ("max_scale", State { max_scale: 0.5, ..fine }),
            ("max_scale", State { max_scale: f32::INFINITY, ..fine }),
            ("growth_tracker", State { growth_tracker: 2000, ..fine }),
        ];
        for (named, state) in cases {
            let Err(Error::Argument { argument, .. }) = LossScaler::new(state) else {
                panic!("{state:?} was taken");
            };
            assert_eq!(argument, named);
        }
    }

    #[test]
    fn a_refused_state_changes_nothing() {
        let mut scaler = LossScaler::new(State::default()).unwrap();
        let refused = scaler.restore(State { scale: -1.0, ..State::default() });
        assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == "scale"));
        assert_eq!(scaler.state(), State::default());
    }

    #[test]
    fn unscaling_rounds_each_quotient_once() {
        everywhere(|exec| {
            for len in lengths() {
                let gradients: Vec<f32> = (0..len).map(|i| (i as f32 - 20.0) * 0.37).collect();
                for scale in [65536.0, 3.0, 1.1] {
                    let mut unscaled = gradients.clone();
                    unscale_gradients(exec, &mut unscaled, scale).unwrap();
                    let exact = gradients.iter().map(|&gradient| gradient / scale);
                    assert!(unscaled.iter().zip(exact).all(|(got, want)| got.to_bits() == want.to_bits()));
                }
            }
            assert!(check_overflow(exec, &[1.0, f32::NAN]).unwrap());
            assert!(!check_overflow(exec, &[1.0, f32::MAX]).unwrap());
        });
    }

    #[test]
    fn one_read_divides_as_the_plain_pass_and_finds_poison_at_any_place() {
        everywhere(|exec| {
            for len in lengths() {
                let clean: Vec<f32> = (0..len).map(|i| (i as f32 - 20.0) * 0.37).collect();
                let poisons = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
                let poisoned = poisons.iter().zip([0, len / 2, len.saturating_sub(1)]).filter(|_| len > 0);
                for poison in std::iter::once(None).chain(poisoned.map(Some)) {
                    let mut gradients = clean.clone();
                    if let Some((&value, place)) = poison {
                        gradients[place] = value;
                    }
                    let mut wanted = gradients.clone();
                    unscale_gradients(exec, &mut wanted, 3.0).unwrap();
                    let overflow = unscale_and_check(exec, &mut gradients, 3.0).unwrap();
                    assert_eq!(overflow, poison.is_some(), "{len}");
                    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&gradients), bits(&wanted));
                }
            }
            // A scale below 1 can overflow a finite gradient.
            assert!(unscale_and_check(exec, &mut [1.0, f32::MAX], 0.5).unwrap());
            assert!(!unscale_and_check(exec, &mut [1.0, f32::MAX], 1.0).unwrap());
        });
    }
}
