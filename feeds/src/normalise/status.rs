//! Venue codes for trading states and their reasons, in DBN's numbers.

use dbn::{StatusAction, StatusReason, TriState};

/// Meaning of a trading state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TradingState {
    pub action: StatusAction,
    /// Whether orders match.
    pub is_trading: TriState,
    /// Whether quotes are shown.
    pub is_quoting: TriState,
}

/// Nasdaq TotalView-ITCH 5.0, Stock Trading Action, field Trading State.
#[must_use]
pub(crate) fn nasdaq_trading_state(code: u8) -> Option<TradingState> {
    let (action, is_trading, is_quoting) = match code {
        b'T' => (StatusAction::Trading, TriState::Yes, TriState::Yes),
        b'Q' => (StatusAction::Quoting, TriState::No, TriState::Yes),
        b'H' => (StatusAction::Halt, TriState::No, TriState::No),
        b'P' => (StatusAction::Pause, TriState::No, TriState::No),
        _ => return None,
    };
    Some(TradingState { action, is_trading, is_quoting })
}

/// Nasdaq TotalView-ITCH 5.0, Stock Trading Action, field Reason (appendix "Stock Trading Action Codes"). Codes that
/// are not in the appendix map to no reason.
#[must_use]
pub(crate) fn nasdaq_reason(code: [u8; 4]) -> StatusReason {
    match code.trim_ascii_end() {
        b"T1" => StatusReason::NewsPending,
        b"T2" => StatusReason::NewsReleased,
        b"T3" => StatusReason::NewsAndResumptionTimes,
        b"C3" => StatusReason::NewsNotForthcoming,
        b"T5" | b"T7" | b"LUDP" | b"LUDS" => StatusReason::LuldPause,
        b"T6" | b"H11" | b"C11" => StatusReason::Regulatory,
        b"T8" => StatusReason::Etf,
        b"T12" => StatusReason::AdditionalInformationRequested,
        b"H4" => StatusReason::NonCompliance,
        b"H9" => StatusReason::FilingsNotCurrent,
        b"H10" => StatusReason::SecTradingSuspension,
        b"O1" => StatusReason::Operational,
        b"MWC1" => StatusReason::MarketWideHaltLevel1,
        b"MWC2" => StatusReason::MarketWideHaltLevel2,
        b"MWC3" => StatusReason::MarketWideHaltLevel3,
        b"MWC0" => StatusReason::MarketWideHaltCarryover,
        b"MWCQ" => StatusReason::MarketWideHaltResumption,
        b"IPO1" | b"IPOQ" | b"IPOE" => StatusReason::NewSecurityOffering,
        b"M1" => StatusReason::CorporateAction,
        b"M2" => StatusReason::QuotationNotAvailable,
        b"R1" => StatusReason::NewIssue,
        b"R2" => StatusReason::IssueAvailable,
        b"R4" | b"C4" => StatusReason::IssuesReviewed,
        b"R9" | b"C9" => StatusReason::FilingReqsSatisfied,
        _ => StatusReason::None,
    }
}

/// IEX TOPS 1.6 and DEEP 1.0, Trading Status Message, field Trading Status.
#[must_use]
pub(crate) fn iex_trading_state(code: u8) -> Option<TradingState> {
    let (action, is_trading, is_quoting) = match code {
        b'T' => (StatusAction::Trading, TriState::Yes, TriState::Yes),
        b'H' => (StatusAction::Halt, TriState::No, TriState::No),
        // Released from the halt into an order acceptance period: orders are accepted for the auction, nothing
        // trades.
        b'O' => (StatusAction::PreCross, TriState::No, TriState::No),
        b'P' => (StatusAction::Pause, TriState::No, TriState::No),
        _ => return None,
    };
    Some(TradingState { action, is_trading, is_quoting })
}

/// IEX TOPS 1.6 and DEEP 1.0, Trading Status Message, field Reason.
#[must_use]
pub(crate) fn iex_reason(code: [u8; 4]) -> StatusReason {
    match code.trim_ascii_end() {
        b"T1" => StatusReason::NewsPending,
        b"T2" => StatusReason::NewsReleased,
        b"IPO1" | b"IPO2" | b"IPO3" | b"IPOD" => StatusReason::NewSecurityOffering,
        b"MCB1" => StatusReason::MarketWideHaltLevel1,
        b"MCB2" => StatusReason::MarketWideHaltLevel2,
        b"MCB3" => StatusReason::MarketWideHaltLevel3,
        _ => StatusReason::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_reasons_have_the_dbn_numbers() {
        assert_eq!(nasdaq_reason(*b"LUDP") as u16, 50);
        assert_eq!(nasdaq_reason(*b"T1  ") as u16, 30);
        assert_eq!(nasdaq_reason(*b"T2  ") as u16, 31);
        assert_eq!(nasdaq_reason(*b"    "), StatusReason::None);
        assert_eq!(nasdaq_trading_state(b'Q').map(|state| state.action as u16), Some(3));
        assert_eq!(nasdaq_trading_state(b'?'), None);
        assert_eq!(iex_trading_state(b'T').map(|state| state.action as u16), Some(7));
    }
}
