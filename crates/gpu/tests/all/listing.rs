//! Listing and choosing adapters opens none.

use unisono_gpu::{adapters, select};

#[test]
fn a_name_that_fits_none_is_an_error_with_the_list() {
    let error = select(&["no such adapter"]).unwrap_err();
    let there = adapters(&[]);
    for adapter in &there {
        assert!(error.to_string().contains(&adapter.label()), "{error}");
    }
    let part = there[0].name.to_uppercase();
    assert!(select(&[&part, &part]).unwrap().contains(&there[0]));
}

#[test]
fn listing_opens_no_device() {
    // A device is only ever requested where one is opened.
    for text in [
        include_str!("../../src/adapter/mod.rs"),
        include_str!("../../src/adapter/enumerate.rs"),
        include_str!("../../src/adapter/select.rs"),
    ] {
        assert!(!text.contains("request_device"));
    }
}
