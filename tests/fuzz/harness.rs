//! Random mutations of valid inputs, the same in every run. A reader of such an input must not panic, and must not
//! allocate more memory than a bound.
//!
//! `MDGW_FUZZ_ROUNDS` sets the number of mutated inputs, `MDGW_FUZZ_SEED` selects other mutations. The current input is
//! kept in a file, so that an input that kills the process can be found too.

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
};

use mdgw_captures::random::{Random, mix};
use mdgw_tests::{captures, counting_allocator::with_memory_limit};

/// A reader under test: its inputs and its memory limit.
pub(crate) struct Target {
    /// Name of the target, and of its folder of kept inputs below `tests/data/fuzz`.
    pub(crate) name: &'static str,
    /// Valid inputs.
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Number of mutated inputs by default.
    pub(crate) rounds: u64,
    /// Most memory that reading one input may allocate, bytes.
    pub(crate) memory_bytes_max: usize,
}

impl Target {
    /// Passes the valid inputs, the kept inputs and mutations of both to `read`. Panics if `read` panics.
    pub(crate) fn run(self, mut read: impl FnMut(&[u8])) {
        let Self { name, seeds, rounds, memory_bytes_max } = self;
        assert!(!seeds.is_empty(), "{name}: nothing to begin with");
        let corpus: Vec<Vec<u8>> = seeds.into_iter().chain(kept(name)).collect();
        let (rounds, seed) = (number("MDGW_FUZZ_ROUNDS").unwrap_or(rounds), number("MDGW_FUZZ_SEED").unwrap_or(1));
        let current_input = CurrentInput::new(name);
        let mut one = |input: &[u8], what: &dyn Fn() -> String| {
            fs::write(&current_input.0, input).expect("the input in hand can be kept");
            let outcome = catch_unwind(AssertUnwindSafe(|| with_memory_limit(memory_bytes_max, || read(input))));
            if let Err(panic) = outcome {
                let found = current_input.keep();
                let place = format!("tests/data/fuzz/{name}");
                captures::print_to_stderr(&format!("{name}: {} panics; move {} to {place}", what(), found.display()));
                resume_unwind(panic);
            }
        };
        for (place, input) in corpus.iter().enumerate() {
            one(input, &|| format!("good or kept input {place}"));
        }
        for round in 0..rounds {
            // Each round has its own random numbers, so that it can be repeated without the rounds before it.
            let mut random = Random::new(mix(seed ^ mix(round + 1)));
            one(&mutated(&corpus, &mut random), &|| format!("round {round} of seed {seed}"));
        }
    }
}

/// The file with the current input. Removed after success.
struct CurrentInput(PathBuf);

impl CurrentInput {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
        fs::create_dir_all(&folder).expect("the build's own folder can be written to");
        Self(folder.join(format!("{name}.in-hand")))
    }

    fn keep(&self) -> PathBuf {
        let found = self.0.with_extension("found");
        fs::rename(&self.0, &found).expect("the input can be kept");
        found
    }
}

impl Drop for CurrentInput {
    fn drop(&mut self) {
        // After a panic there is no such file: `keep` has renamed it.
        let _ = fs::remove_file(&self.0);
    }
}

/// Inputs that once made a reader fail, and samples of formats that no code here writes.
fn kept(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/fuzz").join(name);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a folder of ours").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a file of ours")).collect()
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// One of the inputs with one to four mutations.
fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = choose(corpus, random).clone();
    for _ in 0..=below(random, 4) {
        mutate(&mut bytes, corpus, random);
    }
    bytes.truncate(INPUT_BYTES_MAX);
    bytes
}

fn mutate(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = below(random, bytes.len());
    match random.below(12) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = *choose(&INTERESTING_BYTES, random),
        2..=4 => put_number(bytes, at, random),
        5 | 6 => put_digits(bytes, at, random),
        7 => bytes.truncate(at),
        8 => drop(bytes.drain(at..(at + 1 + below(random, 32)).min(bytes.len()))),
        9 => {
            let until = (at + 1 + below(random, 256)).min(bytes.len());
            let copied = bytes[at.min(until)..until].to_vec();
            let to = below(random, bytes.len() + 1);
            bytes.splice(to..to, copied);
        }
        10 => {
            let other = choose(corpus, random);
            let from = below(random, other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from.min(other.len())..]);
        }
        _ => {
            let fill: Vec<u8> = (0..1 + below(random, 16)).map(|_| random.next_u64().to_le_bytes()[0]).collect();
            bytes.splice(at..at, fill);
        }
    }
}

/// Overwrites 1, 2, 4 or 8 bytes with a number that is likely to be a wrong length, count or time, in either byte
/// order.
fn put_number(bytes: &mut [u8], at: usize, random: &mut Random) {
    let width = 1 << below(random, 4);
    let number = interesting_number(bytes.len() as u64, random);
    let (little, big) = (number.to_le_bytes(), number.to_be_bytes());
    let of_width = if random.chance(0.5) { &little[..width] } else { &big[8 - width..] };
    for (byte, new) in bytes.iter_mut().skip(at).zip(of_width) {
        *byte = *new;
    }
}

/// Replaces the next decimal number of a text.
fn put_digits(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(skipped) = bytes.iter().skip(at).position(u8::is_ascii_digit) else { return };
    let begin = at + skipped;
    let digits = bytes[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = interesting_number(bytes.len() as u64, random).to_string();
    bytes.splice(begin..begin + digits, number.into_bytes());
}

fn interesting_number(length: u64, random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.next_u64(),
        1 => length.wrapping_add(random.below(5)).wrapping_sub(2),
        2 => random.below(16),
        3 => u64::MAX.wrapping_sub(random.below(3)),
        // A power of two or a neighbour: the limits of integer types.
        _ => (1_u64 << random.below(64)).wrapping_add(random.below(3)).wrapping_sub(1),
    }
}

fn choose<'a, T>(all: &'a [T], random: &mut Random) -> &'a T {
    &all[below(random, all.len())]
}

/// A random number below `bound`; 0 if `bound` is 0.
fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("it is below a usize")
}

const INTERESTING_BYTES: [u8; 12] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, b'\n', b'"', b'{', b'[', b'-', b'9'];
/// Longest input. Longer inputs do not find further errors.
const INPUT_BYTES_MAX: usize = 1 << 20;
