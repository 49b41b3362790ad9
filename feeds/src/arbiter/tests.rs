//! Promises of the arbiter, told line by line and checked against "sort, drop duplicates, missing = gap".
