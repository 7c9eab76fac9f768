//! Finds the library. This script also generates the bindings from the library's headers with the feature `bindgen`.
//! With the feature `vendored` it builds the library from its sources instead, as a static library.
//!
//! - `STAGEHAND_LIB_DIR`: the folder of `libstagehand.so`. The script asks pkg-config only if this variable is not set.
//!   With the feature `vendored` the script ignores it.
//! - `STAGEHAND_MESON_OPTIONS`: more options for Meson, for the feature `vendored`, separated by spaces.
//! - `STAGEHAND_INCLUDE_DIR`: the folder that holds `stagehand/stagehand.h`, for the feature `bindgen`.

use std::env;
use std::path::PathBuf;
#[cfg(feature = "vendored")]
use std::{path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["STAGEHAND_LIB_DIR", "STAGEHAND_INCLUDE_DIR", "DOCS_RS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // Documentation sites have no library, so nothing is linked if DOCS_RS is set.
    let includes = if env::var_os("DOCS_RS").is_some() {
        Vec::new()
    } else if cfg!(feature = "vendored") {
        build_library()
    } else {
        find_library()
    };
    let includes = match env::var_os("STAGEHAND_INCLUDE_DIR") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => includes,
    };
    for folder in &includes {
        println!("cargo::metadata=include={}", folder.display());
    }
    #[cfg(feature = "bindgen")]
    generate(&includes);
}

/// Tells cargo what to link, and returns the include folders that pkg-config knows.
#[cfg_attr(feature = "vendored", allow(dead_code))]
fn find_library() -> Vec<PathBuf> {
    if let Some(folder) = env::var_os("STAGEHAND_LIB_DIR") {
        let folder = PathBuf::from(folder);
        if !folder.join("libstagehand.so").exists() {
            fail(&format!("STAGEHAND_LIB_DIR: the folder {} has no libstagehand.so", folder.display()));
        }
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=dylib=stagehand");
        return Vec::new();
    }
    // The bindings declare what the library has since this version.
    let least = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    match pkg_config::Config::new().atleast_version(least).probe("stagehand") {
        Ok(library) => library.include_paths,
        Err(error) => fail(&format!(
            "libstagehand was not found. Install it, or set PKG_CONFIG_PATH to the folder of its stagehand.pc, or \
             STAGEHAND_LIB_DIR to the folder of libstagehand.so.\n{error}"
        )),
    }
}

#[cfg(not(feature = "vendored"))]
fn build_library() -> Vec<PathBuf> {
    Vec::new()
}

/// Builds the static library by Meson, tells cargo what to link, and returns the include folder.
#[cfg(feature = "vendored")]
fn build_library() -> Vec<PathBuf> {
    println!("cargo::rerun-if-env-changed=STAGEHAND_MESON_OPTIONS");
    let source = sources();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let (build, prefix) = (out.join("build"), out.join("installed"));
    // Meson keeps the options of a folder that it has set up, so each run begins anew.
    let _ = std::fs::remove_dir_all(&build);
    let more = env::var("STAGEHAND_MESON_OPTIONS").unwrap_or_default();
    run(Command::new("meson")
        .args(["setup", "--buildtype=release", "-Ddefault_library=static", "-Dlibdir=lib", "-Dtests=disabled"])
        .args(["-Dcli=disabled", "-Dexamples=disabled", "-Dbench=disabled", "-Dcontrol=disabled"])
        .args(more.split_whitespace())
        .arg(format!("-Dprefix={}", prefix.display()))
        .args([&build, &source]));
    run(Command::new("meson").args(["install", "--quiet", "--tags", "devel", "-C"]).arg(&build));
    let flags = run(Command::new("pkg-config")
        .args(["--libs", "--static", "stagehand"])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
    for flag in flags.split_whitespace() {
        match flag.split_at(flag.len().min(2)) {
            ("-L", folder) => println!("cargo::rustc-link-search=native={folder}"),
            ("-l", "stagehand") => println!("cargo::rustc-link-lib=static=stagehand"),
            ("-l", name) => println!("cargo::rustc-link-lib=dylib={name}"),
            _ => {} // -pthread: Rust's own library links it
        }
    }
    vec![prefix.join("include")]
}

/// Returns the folder of the library's sources: in the published crate, or in the tree that this crate lies in.
#[cfg(feature = "vendored")]
fn sources() -> PathBuf {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let found = [here.join("vendor"), here.join("../../..")].into_iter().find(|to| to.join("meson.build").exists());
    let source = found.unwrap_or_else(|| fail("the crate has no sources of the library: it was packed without them"));
    for name in ["meson.build", "lib", "include", "backends"] {
        println!("cargo::rerun-if-changed={}", source.join(name).display());
    }
    source
}

/// Runs a program, and returns its output. A failure ends the build with the output.
#[cfg(feature = "vendored")]
fn run(command: &mut Command) -> String {
    let name = Path::new(command.get_program()).display().to_string();
    match command.output() {
        Ok(done) if done.status.success() => String::from_utf8_lossy(&done.stdout).into_owned(),
        Ok(done) => fail(&format!(
            "{command:?}\n{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        )),
        Err(error) => fail(&format!(
            "{name} cannot be run ({error}). The feature `vendored` needs Meson, ninja, pkg-config, a C++ compiler \
             and the headers of nlohmann-json and xxHash."
        )),
    }
}

fn fail(text: &str) -> ! {
    eprintln!("{text}");
    std::process::exit(1);
}

#[cfg(feature = "bindgen")]
fn generate(includes: &[PathBuf]) {
    let header =
        includes.iter().map(|folder| folder.join("stagehand/stagehand.h")).find(|path| path.exists()).unwrap_or_else(
            || fail("stagehand/stagehand.h was not found: set STAGEHAND_INCLUDE_DIR to its parent folder"),
        );
    let folder = header.parent().expect("the header's path has a parent folder");
    println!("cargo::rerun-if-changed={}", folder.display());
    let bindings = bindgen::Builder::default()
        .header(header.to_str().expect("the path of the headers is UTF-8"))
        .raw_line("// Written by `./dev gen` from the public headers: do not edit.")
        .allowlist_item("(sh|SH)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .default_macro_constant_type(bindgen::MacroTypeVariation::Unsigned)
        .derive_default(false)
        .derive_debug(true)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .use_core()
        .rust_edition(bindgen::RustEdition::Edition2024)
        .rust_target(bindgen::RustTarget::stable(85, 0).unwrap_or_else(|_| fail("bindgen does not know Rust 1.85")))
        .formatter(bindgen::Formatter::Prettyplease)
        .parse_callbacks(Box::new(Headers))
        .generate()
        .unwrap_or_else(|error| fail(&format!("bindgen: {error}")));
    let path = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    if let Err(error) = bindings.write_to_file(&path) {
        fail(&format!("{}: {error}", path.display()));
    }
}

/// Adds what bindgen cannot derive from the headers: the type of a constant, and comments in rustdoc's syntax.
#[cfg(feature = "bindgen")]
#[derive(Debug)]
struct Headers;

#[cfg(feature = "bindgen")]
impl bindgen::callbacks::ParseCallbacks for Headers {
    fn int_macro(&self, name: &str, _value: i64) -> Option<bindgen::callbacks::IntKind> {
        (name == "SH_STREAM_HOST").then_some(bindgen::callbacks::IntKind::U64)
    }

    fn process_comment(&self, comment: &str) -> Option<String> {
        let mut lines = Vec::new();
        for line in comment.lines() {
            let line = line.trim_start_matches('<').trim();
            let line = line.replace('[', "\\[").replace(']', "\\]").replace('<', "\\<");
            let line = line.replace("\\since ", "Since ");
            if let Some(rest) = line.strip_prefix("@param ") {
                let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
                lines.extend([String::new(), format!("- `{name}`: {}", text.trim_start())]);
            } else if let Some(rest) = line.strip_prefix("@return ") {
                lines.extend([String::new(), format!("Returns {}", rest.trim_start())]);
            } else {
                lines.push(line);
            }
        }
        Some(lines.join("\n"))
    }
}
