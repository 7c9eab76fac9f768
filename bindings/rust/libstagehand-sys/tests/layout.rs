//! The structs are those of the library that is loaded: it writes their sizes. (That they are those of the headers is asserted where
//! they are declared, when they are compiled.)

use libstagehand_sys::*;
use std::mem::{MaybeUninit, size_of};

macro_rules! sizes {
    ($($name:ident by $init:ident),* $(,)?) => {
        #[test]
        fn initialisers_agree_on_sizes() {
            $({
                // One byte too many on each side of what the initialiser may write is left alone.
                #[repr(C)]
                struct Fenced(u64, MaybeUninit<$name>, u64);
                let mut fenced = Fenced(0x5a5a, MaybeUninit::uninit(), 0xa5a5);
                // SAFETY: the initialiser fills a struct of this type.
                let value = unsafe {
                    $init(fenced.1.as_mut_ptr());
                    fenced.1.assume_init_ref()
                };
                assert_eq!(value.struct_size as usize, size_of::<$name>(), stringify!($name));
                assert_eq!((fenced.0, fenced.2), (0x5a5a, 0xa5a5), stringify!($name));
            })*
        }
    };
}

sizes! {
    sh_device_options by sh_device_options_init,
    sh_memory_info by sh_memory_info_init,
    sh_device_caps by sh_device_caps_init,
    sh_backend_info by sh_backend_info_init,
    sh_runtime_options by sh_runtime_options_init,
    sh_segment by sh_segment_init,
    sh_block_desc by sh_block_desc_init,
    sh_block_state by sh_block_state_init,
    sh_use by sh_use_init,
    sh_plan_options by sh_plan_options_init,
    sh_plan_info by sh_plan_info_init,
    sh_view by sh_view_init,
    sh_guest_options by sh_guest_options_init,
    sh_runtime_stats by sh_runtime_stats_init,
}

#[test]
fn constants_have_their_values() {
    assert_eq!(SH_STREAM_HOST, u64::MAX);
    assert_eq!((SH_OK, SH_NOT_READY, SH_ERROR_HELD, SH_ERROR_DUPLICATE_LIBRARY), (0, 1, -204, -602));
    assert_eq!((SH_BLOCK_PIN, SH_SOURCE_DEVICE, SH_ACQUIRE_NO_WAIT), (8, 5, 1));
}

#[test]
fn the_library_is_of_the_headers_version() {
    // SAFETY: it never fails.
    let version = unsafe { sh_version() };
    assert_eq!(version / 1_000_000, SH_VERSION_MAJOR);
    assert!(version / 1_000 % 1_000 >= SH_VERSION_MINOR);
}
