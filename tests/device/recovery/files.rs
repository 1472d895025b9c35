//! Files that cannot be written, and files that shrink.

use bitnet_wgpu::{
    Error,
    model::{Model, ModelFiles, SessionOptions},
};
use std::fs;
use support::{block_on, context, files::Directory, own_process};

/// A file of a process may have at most 8 KiB here: what is longer fails half-way, as on a disk
/// that is full.
#[cfg(unix)]
#[test]
fn sessions_are_saved_atomically() {
    const FOLDER: &str = "BITNET_TEST_FULL_DISK";
    const NAME: &str = "sessions_are_saved_atomically";
    let model = Model::builder(support::data("models").join("odd")).cpu().build().unwrap();
    let options = SessionOptions::new(1, 200);
    let session = |tokens: usize| {
        let mut session = model.session(options).unwrap();
        block_on(session.prefill(0, &(0..tokens as u32).map(|i| i % 50).collect::<Vec<_>>()))
            .unwrap();
        session
    };
    if let Some(folder) = std::env::var_os(FOLDER) {
        let path = std::path::Path::new(&folder).join("session");
        block_on(session(1).save(&path)).expect("a small one has room");
        let error = block_on(session(190).save(&path)).unwrap_err();
        assert!(matches!(&error, Error::Io { path: of, .. } if *of == path), "{error}");
        return;
    }
    let directory = Directory::temporary();
    let mut limited = own_process("trap '' XFSZ; ulimit -f 16;", module_path!(), NAME);
    let output = limited.env(FOLDER, &directory.0).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1, "nothing else is left");
    assert_eq!(
        model.load_session(directory.0.join("session"), options).unwrap().tokens(0),
        [0],
        "what was there stays"
    );
    block_on(session(190).save(directory.0.join("session"))).unwrap();
    assert_eq!(model.load_session(directory.0.join("session"), options).unwrap().len(0), 190);
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let directory = Directory::temporary();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(support::data("models").join("odd").join(name), directory.0.join(name)).unwrap();
    }
    let files = ModelFiles::open(&directory.0).unwrap();
    let models =
        [None, Some(context())].map(|context| files.builder().device(context).build().unwrap());
    let logits = || models.each_ref().map(|model| block_on(model.logits(&[1, 2, 3])).unwrap());
    let before = logits();
    let file =
        fs::OpenOptions::new().write(true).open(directory.0.join("model.safetensors")).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    // Models have what they need of it; whoever reads it is told.
    assert_eq!(logits(), before);
    for context in [None, Some(context())] {
        let error = files.builder().device(context).build().map(drop).unwrap_err();
        assert!(
            matches!(&error, Error::Format { .. })
                && error.to_string().contains("when it was opened"),
            "{error}"
        );
        assert!(matches!(models[0].reload(context).map(drop), Err(Error::Format { .. })));
    }
}
