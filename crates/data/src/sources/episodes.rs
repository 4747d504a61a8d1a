//! Environments of reinforcement learning: many copies of one, in which an agent acts at the same time.

use unisono_random::Draws;

use crate::{Batch, DataError, Field, Replay, Sample};

/// A system in which an agent acts, such as a game. Gymnasium calls it `Env`.
///
/// All randomness comes from the draws that it starts with, so equal draws and actions give an equal episode.
#[doc(alias("Env", "gym", "gymnasium"))]
pub trait Environment {
    /// The number of actions that the agent has. With 0, [`Episodes`] do not compile.
    const ACTIONS: usize;

    /// Starts an episode.
    fn start(draws: &mut Draws) -> Self;

    /// Returns what the agent observes. The number of values is always the same.
    fn state(&self) -> &[f32];

    /// Takes an action, from 0 to below [`ACTIONS`](Self::ACTIONS), and returns what comes of it.
    fn act(&mut self, action: usize) -> Turn;
}

/// What comes of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Turn {
    /// The reward of the action.
    pub reward: f32,
    /// Whether the episode has come to an end of its own: no reward can follow.
    pub terminated: bool,
    /// Whether the episode is cut off here, such as at a limit of steps: rewards would follow.
    pub truncated: bool,
}

/// Copies of an [`Environment`] in which an agent acts at the same time, as in Gymnasium's `VectorEnv`.
///
/// ```
/// use unisono_data::{Draws, Environment, Episodes, Replay, Turn};
///
/// /// A walk to the right, which ends at 3.
/// struct Walk([f32; 1]);
///
/// impl Environment for Walk {
///     const ACTIONS: usize = 2;
///
///     fn start(_: &mut Draws) -> Self {
///         Self([0.0])
///     }
///
///     fn state(&self) -> &[f32] {
///         &self.0
///     }
///
///     fn act(&mut self, action: usize) -> Turn {
///         self.0[0] += [-1.0, 1.0][action];
///         Turn { reward: -1.0, terminated: self.0[0] == 3.0, truncated: false }
///     }
/// }
///
/// let (mut walks, mut replay) = (Episodes::<Walk>::new(4), Replay::new(100, 7));
/// for step in 0..10 {
///     // Without values, actions are random. A trained model gives one for each action of each copy.
///     walks.act(&mut replay, &mut Draws::of(7, "walk", "", 0, step), &[], 1.0)?;
/// }
/// assert_eq!(replay.len(), 40);
/// let rewards = walks.play(&mut Draws::of(7, "walk", "test", 0, 0), |states| {
///     Ok::<_, unisono_data::DataError>([0.0, 1.0].repeat(states.len()))
/// })?;
/// assert_eq!(rewards, [-3.0; 4]);
/// # Ok::<(), unisono_data::DataError>(())
/// ```
#[doc(alias("VectorEnv", "vectorized environment"))]
#[derive(Clone, Debug)]
pub struct Episodes<E> {
    count: usize,
    /// All copies, or none before the first action.
    running: Vec<E>,
}

impl<E: Environment> Episodes<E> {
    /// Returns this number of copies, whose episodes start with the first action.
    pub fn new(count: usize) -> Self {
        Self { count, running: Vec::new() }
    }

    /// Ends all episodes: the next action starts new ones.
    pub fn clear(&mut self) {
        self.running.clear();
    }

    /// Returns the states of all copies as the field `state`, or `None` before the first action.
    ///
    /// # Errors
    /// The copies observe different numbers of values.
    pub fn states(&self) -> Result<Option<Batch>, DataError> {
        if self.running.is_empty() { Ok(None) } else { states(&self.running).map(Some) }
    }

    /// Acts once in each copy, and adds what happened to a buffer. Copies whose episodes end start new ones.
    ///
    /// `values` are those of all actions in the [states](Self::states), copy by copy. The action is a random
    /// one with the probability `epsilon`, and otherwise that of the highest value (epsilon-greedy). Without
    /// values for a copy, its action is random.
    ///
    /// A sample has the fields `state` and `next`, f32 `[n]`; `action`, i32 `[]`; `reward`, f32 `[]`; and
    /// `continues`, f32 `[]`: 0 if the episode terminated, otherwise 1.
    ///
    /// # Errors
    /// Those of [`Replay::push`].
    pub fn act(
        &mut self,
        replay: &mut Replay,
        draws: &mut Draws,
        values: &[f32],
        epsilon: f32,
    ) -> Result<(), DataError> {
        const { assert!(E::ACTIONS > 0, "an environment needs at least one action") };
        while self.running.len() < self.count {
            self.running.push(E::start(draws));
        }
        let mut values = values.chunks_exact(E::ACTIONS);
        let actions = u32::try_from(E::ACTIONS).unwrap_or(u32::MAX);
        for copy in &mut self.running {
            let best = values.next().map(highest).filter(|_| draws.range(0.0, 1.0) >= epsilon);
            let action = best.unwrap_or_else(|| draws.below(actions) as usize);
            let observed = |copy: &E| Field::f32([copy.state().len()], copy.state());
            let number = |number| Field::f32([], [number]);
            let state = observed(copy);
            let turn = copy.act(action);
            replay.push(
                &Sample::new()
                    .with("state", state)
                    .with("action", Field::i32([], [action as i32]))
                    .with("reward", number(turn.reward))
                    .with("next", observed(copy))
                    .with("continues", number(f32::from(u8::from(!turn.terminated)))),
            )?;
            if turn.terminated || turn.truncated {
                *copy = E::start(draws);
            }
        }
        Ok(())
    }

    /// Plays one new episode in each copy to its end, always with the action of the highest value. Returns
    /// the sum of each one's rewards. The episodes of [`act`](Self::act) stay as they are. `values` returns
    /// those of all actions for a batch of states, which becomes smaller as episodes end.
    ///
    /// # Errors
    /// Those of `values`, and the errors of [`states`](Self::states).
    pub fn play<F: From<DataError>>(
        &self,
        draws: &mut Draws,
        mut values: impl FnMut(&Batch) -> Result<Vec<f32>, F>,
    ) -> Result<Vec<f32>, F> {
        const { assert!(E::ACTIONS > 0, "an environment needs at least one action") };
        let mut rewards = vec![0.0; self.count];
        let mut running: Vec<E> = (0..self.count).map(|_| E::start(draws)).collect();
        let mut whose: Vec<usize> = (0..self.count).collect();
        while !running.is_empty() {
            let values = values(&states(&running)?)?;
            let mut values = values.chunks_exact(E::ACTIONS);
            let mut going_on = Vec::new();
            for (copy, &own) in running.iter_mut().zip(&whose) {
                let Some(values) = values.next() else {
                    let what = format!("too few values for {} actions in each state", E::ACTIONS);
                    return Err(DataError::field("state", what).into());
                };
                let turn = copy.act(highest(values));
                rewards[own] += turn.reward;
                going_on.push(!turn.terminated && !turn.truncated);
            }
            let mut keep = going_on.iter();
            running.retain(|_| keep.next() == Some(&true));
            let mut keep = going_on.iter();
            whose.retain(|_| keep.next() == Some(&true));
        }
        Ok(rewards)
    }
}

/// Returns the states as a batch.
fn states<E: Environment>(copies: &[E]) -> Result<Batch, DataError> {
    let size = copies.first().map_or(0, |copy| copy.state().len());
    let all: Vec<f32> = copies.iter().flat_map(E::state).copied().collect();
    Batch::of([("state", Field::f32([copies.len(), size], all))])
}

/// Returns the place of the highest value, the first of equal ones.
fn highest(values: &[f32]) -> usize {
    (0..values.len()).fold(0, |best, at| if values[at] > values[best] { at } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts down by 1 or 2 from a number that is drawn. It is cut off after four actions.
    #[derive(Clone, Debug, PartialEq)]
    struct Count {
        left: [f32; 1],
        actions: u32,
    }

    impl Environment for Count {
        const ACTIONS: usize = 2;

        fn start(draws: &mut Draws) -> Self {
            Self { left: [2.0 + draws.below(6) as f32], actions: 0 }
        }

        fn state(&self) -> &[f32] {
            &self.left
        }

        fn act(&mut self, action: usize) -> Turn {
            self.left[0] -= 1.0 + action as f32;
            self.actions += 1;
            Turn { reward: 10.0, terminated: self.left[0] <= 0.0, truncated: self.actions == 4 }
        }
    }

    fn draws(at: u64) -> Draws {
        Draws::of(3, "test", "", 0, at)
    }

    #[test]
    fn what_happened_is_in_the_buffer_and_ended_episodes_start_again() {
        let (mut counts, mut replay) = (Episodes::<Count>::new(3), Replay::new(1000, 1));
        assert!(counts.states().unwrap().is_none());
        for step in 0..40 {
            let before = counts.running.clone();
            // The highest value is that of action 1 for the first copy, and of action 0 for the others.
            counts.act(&mut replay, &mut draws(step), &[0.0, 1.0, 1.0, 0.0, 5.0, 5.0], 0.0).unwrap();
            for (at, before) in before.iter().enumerate() {
                let after = &counts.running[at];
                let mut expected = before.clone();
                let turn = expected.act(usize::from(at == 0));
                match turn.terminated || turn.truncated {
                    true => assert_eq!(after.actions, 0),
                    false => assert_eq!(*after, expected),
                }
            }
        }
        assert_eq!(counts.states().unwrap().unwrap().field("state").unwrap().shape, [3, 1]);
        assert_eq!(replay.pushed(), 120);
        let batch = replay.draw(500).unwrap();
        let [state, next, reward, continues] =
            ["state", "next", "reward", "continues"].map(|name| batch.f32(name).unwrap());
        let mut ends = 0;
        for row in 0..500 {
            let action = batch.i32("action").unwrap()[row];
            assert_eq!(next[row], state[row] - 1.0 - action as f32);
            // An episode that is cut off would go on.
            assert_eq!((reward[row], continues[row]), (10.0, if next[row] <= 0.0 { 0.0 } else { 1.0 }));
            ends += usize::from(next[row] <= 0.0);
        }
        assert!(ends > 50 && ends < 400, "{ends}");
        counts.clear();
        assert!(counts.states().unwrap().is_none());
    }

    #[test]
    fn epsilon_is_the_share_of_random_actions() {
        for (epsilon, least, most) in [(0.0, 0, 0), (0.2, 60, 140), (1.0, 440, 560)] {
            let (mut counts, mut replay) = (Episodes::<Count>::new(10), Replay::new(1000, 1));
            (0..100).for_each(|at| {
                counts.act(&mut replay, &mut draws(at), &[1.0, 0.0].repeat(10), epsilon).unwrap()
            });
            let bytes = replay.to_bytes().unwrap();
            let tensors = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let ones =
                tensors.tensor("action").unwrap().data().iter().map(|&byte| usize::from(byte)).sum::<usize>();
            assert!((least..=most).contains(&ones), "{epsilon}: {ones}");
        }
        // A draw from [0, 1) is below epsilon with the probability epsilon. At epsilon itself the action is
        // the best one, also for a draw of 0 with epsilon = 0.
        let mut counts = Episodes::<Count>::new(1);
        let mut replay = Replay::new(100, 1);
        counts.act(&mut replay, &mut draws(0), &[1.0, 0.0], 0.0).unwrap();
        for at in 1..20 {
            counts.running[0] = Count { left: [9.0], actions: 0 };
            let epsilon = draws(at).range(0.0, 1.0);
            counts.act(&mut replay, &mut draws(at), &[1.0, 0.0], epsilon).unwrap();
            assert_eq!(counts.running[0].left, [8.0], "a draw of {epsilon}");
        }
        // Equal draws give equal episodes, and without values actions are random.
        let of = |at| {
            let (mut counts, mut replay) = (Episodes::<Count>::new(10), Replay::new(1000, 1));
            counts.act(&mut replay, &mut draws(at), &[], 0.0).unwrap();
            replay
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn a_played_episode_has_the_sum_of_its_rewards() {
        let counts = Episodes::<Count>::new(20);
        let play = |values: [f32; 2]| {
            let mut sizes = vec![];
            let rewards = counts.play(&mut draws(0), |states| {
                sizes.push(states.len());
                Ok::<_, DataError>(values.repeat(states.len()))
            });
            (rewards.unwrap(), sizes)
        };
        let mut start = draws(0);
        let left: Vec<f32> = (0..20).map(|_| Count::start(&mut start).left[0]).collect();
        let expected =
            |by: f32| left.iter().map(|left| 10.0 * (left / by).ceil().min(4.0)).collect::<Vec<_>>();
        let (slow, sizes) = play([1.0, 0.0]);
        assert_eq!(slow, expected(1.0));
        assert_eq!(play([0.0, 1.0]).0, expected(2.0));
        assert!(sizes[0] == 20 && sizes.is_sorted_by(|a, b| a >= b) && sizes.len() == 4, "{sizes:?}");
        let few = counts.play(&mut draws(0), |_| Ok::<_, DataError>(vec![1.0; 21])).unwrap_err().to_string();
        assert!(few.contains("too few values for 2 actions in each state"), "{few}");
        let none = Episodes::<Count>::new(0).play(&mut draws(0), |_| Ok::<_, DataError>(vec![])).unwrap();
        assert!(none.is_empty());
    }
}
