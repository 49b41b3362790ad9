//! Reasons why input was not used or a book no longer matches its venue's. Each reason is declared once and has one
//! counter.

/// Declares an enum of reasons. Each line gives a reason's variant, its name as printed and its meaning.
#[macro_export]
macro_rules! reasons {
    (
        $(#[$reason_attribute:meta])*
        enum $reason:ident;
        $($variant:ident = $name:literal, $help:literal;)+
    ) => {
        $(#[$reason_attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $reason { $(#[doc = $help] $variant,)+ }

        impl $reason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Name of the counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// What the counter counts, for documents.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help),+ }
            }
        }
    };
}

/// Declares an enum of reasons and a struct with their counters.
#[macro_export]
macro_rules! counted_reasons {
    (
        $(#[$reason_attribute:meta])*
        enum $reason:ident;
        $(#[$counts_attribute:meta])*
        struct $counts:ident;
        $($lines:tt)+
    ) => {
        $crate::reasons! {
            $(#[$reason_attribute])*
            enum $reason;
            $($lines)+
        }

        $(#[$counts_attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $counts([u64; $reason::ALL.len()]);

        impl $counts {
            /// Increments the counter of `reason`.
            pub fn count(&mut self, reason: $reason) {
                if let Some(slot) = self.0.get_mut(reason as usize) {
                    *slot = slot.saturating_add(1);
                }
            }

            /// Adds `count` to the counter of `reason`.
            pub fn count_many(&mut self, reason: $reason, count: u64) {
                if let Some(slot) = self.0.get_mut(reason as usize) {
                    *slot = slot.saturating_add(count);
                }
            }

            /// Count of one reason.
            #[must_use]
            pub fn get(&self, reason: $reason) -> u64 {
                self.0.get(reason as usize).copied().unwrap_or(0)
            }

            /// Reasons with a non-zero count.
            pub fn iter(&self) -> impl Iterator<Item = ($reason, u64)> + '_ {
                $reason::ALL.iter().map(|reason| (*reason, self.get(*reason))).filter(|(_, count)| *count > 0)
            }
        }
    };
}
