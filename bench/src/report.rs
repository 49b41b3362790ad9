//! Times of the variants in each round, and statistics over the rounds.

use serde_json::{Value, json};

/// Times of several variants that ran in alternation.
pub(crate) struct Rounds {
    names: Vec<&'static str>,
    /// For each variant, ns per message in each round.
    times_ns: Vec<Vec<f64>>,
    message_count: u64,
}

/// Median, least and greatest.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Rounds {
    pub(crate) fn new(names: &[&'static str], message_count: u64) -> Self {
        Self { names: names.to_vec(), times_ns: vec![Vec::new(); names.len()], message_count }
    }

    /// Runs and times one variant.
    pub(crate) fn time<T>(&mut self, name: &str, run: impl FnOnce() -> T) -> T {
        let start_ns = on_cpu_ns();
        let result = run();
        let elapsed_ns = on_cpu_ns().saturating_sub(start_ns) as f64;
        if let Some(index) = self.index(name) {
            self.times_ns[index].push(elapsed_ns / self.message_count as f64);
        }
        result
    }

    pub(crate) fn ns(&self, name: &str) -> Spread {
        Spread::of(self.index(name).map_or_else(Vec::new, |index| self.times_ns[index].clone()))
    }

    /// Ratio to another variant, round by round.
    pub(crate) fn ratio(&self, name: &str, base: &str) -> Spread {
        let (Some(index), Some(base)) = (self.index(name), self.index(base)) else { return Spread::of(Vec::new()) };
        let pairs = self.times_ns[index].iter().zip(&self.times_ns[base]);
        Spread::of(pairs.map(|(time, base)| time / base).collect())
    }

    /// A table with the ratio of each variant to the first one, and to its target where it has one.
    pub(crate) fn print(&self, targets: &[(&str, f64)]) {
        let base = self.names[0];
        println!(
            "{:<26} {:>10} {:>22} {:>24} {:>8}",
            "", "ns/message", "(least to greatest)", "ratio to the first", "target"
        );
        for name in &self.names {
            let (ns, ratio) = (self.ns(name), self.ratio(name, base));
            let target = targets.iter().find(|(target, _)| target == name);
            println!(
                "{name:<26} {:>10.1} {:>10.1} to {:>7.1}  {:>7.3} ({:.3} to {:.3}) {:>8}",
                ns.median,
                ns.min,
                ns.max,
                ratio.median,
                ratio.min,
                ratio.max,
                target.map_or(String::new(), |(_, target)| format!("{target:.2}")),
            );
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let base = self.names[0];
        let variants = self.names.iter().map(|name| {
            let (ns, ratio) = (self.ns(name), self.ratio(name, base));
            let value = json!({ "ns_per_message": ns.to_json(), "ratio": ratio.to_json() });
            ((*name).to_owned(), value)
        });
        Value::Object(variants.collect())
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| *known == name)
    }
}

/// Time that this thread has run on a core, ns, as Linux counts it. Time in which the thread is preempted does not
/// count.
fn on_cpu_ns() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    schedstat.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let median = (at(values.len().saturating_sub(1) / 2) + at(values.len() / 2)) / 2.0;
        Self { median, min: at(0), max: at(values.len().saturating_sub(1)) }
    }

    pub(crate) fn to_json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}
