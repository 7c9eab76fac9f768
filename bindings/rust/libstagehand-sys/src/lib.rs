#![doc = include_str!("../README.md")]
#![no_std]

/// Generated from the headers. A test compares the committed file with them.
#[cfg(not(feature = "bindgen"))]
#[rustfmt::skip]
#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(clippy::all)]
mod bindings;

#[cfg(feature = "bindgen")]
#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#[allow(clippy::all)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
