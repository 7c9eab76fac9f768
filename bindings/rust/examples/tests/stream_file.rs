//! The example, on a file that is written here.

use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn stream_file(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stream_file")).args(arguments).output().unwrap()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.safetensors", std::process::id()))
}

fn lines(output: &Output) -> Vec<String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", output.status);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_file_streams_through_a_quarter_of_its_bytes() {
    let path = scratch("small");
    let tensors: Vec<Vec<u8>> = (0..24).map(|i| vec![i as u8; 200_000 + 4 * 1_234 * i]).collect();
    let views = tensors.iter().enumerate().map(|(i, bytes)| {
        let name = format!("layers.{i:02}.weight");
        (name, TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes).unwrap())
    });
    serialize_to_file(views, None, &path).unwrap();
    let told = lines(&stream_file(&[&path]));
    std::fs::remove_file(&path).unwrap();

    let bytes: usize = tensors.iter().map(Vec::len).sum();
    let total: u64 = tensors.iter().enumerate().map(|(i, bytes)| (i * bytes.len()) as u64).sum();
    assert_eq!(told[0], format!("24 tensors of {bytes} bytes through {} bytes", bytes / 4));
    assert_eq!(told[1], format!("step 0: the bytes add up to {total}"));
    assert_eq!(told[2], format!("step 1: the bytes add up to {total}"));
    assert!(told[3].starts_with("protected: 200000 of 200000 bytes of layers.00.weight"), "{}", told[3]);
    assert_eq!(told[4], format!("guest: the bytes add up to 0, the model's to {total}"));
    assert_eq!(told[5], "after the guest: it holds 0 bytes");
    assert_eq!(told.len(), 6);
}

#[test]
fn what_is_wrong_is_said() {
    let missing = stream_file(&[Path::new("/no/such/file")]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).starts_with("stream_file: "));

    let path = scratch("broken");
    std::fs::write(&path, [255; 64]).unwrap();
    let broken = stream_file(&[&path]);
    assert_eq!(broken.status.code(), Some(1));
    let device = stream_file(&[&path, Path::new("no-such-backend")]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(device.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stream_file(&[]).stderr).contains("usage"));
}
