//! Sessions that are forked, saved and loaded, on small models of odd shapes.

use bitnet_wgpu::{
    Element, Error,
    internals::SafeTensors,
    model::{GenerateOptions, Model, Session, SessionOptions},
};
use half::f16;
use safetensors::{Dtype, tensor::TensorView};
use std::{collections::HashMap, fs, path::Path};
use support::{block_on, context, files::Directory};

/// On the GPU and on the CPU.
fn models(name: &str) -> [(&'static str, Model); 2] {
    let directory = support::data("models").join(name);
    [
        ("GPU", Model::builder(&directory).device(context()).build().unwrap()),
        ("CPU", Model::builder(&directory).cpu().build().unwrap()),
    ]
}

fn two_sequences(cache: Element) -> SessionOptions {
    SessionOptions::new(2, 24).kv_type(cache)
}

/// Two sequences of different lengths.
fn begun(model: &Model, cache: Element) -> Session {
    let mut session = model.session(two_sequences(cache)).unwrap();
    block_on(session.prefill(0, &[1, 2, 3, 4, 5, 6, 7])).unwrap();
    block_on(session.prefill(1, &[9, 8, 7])).unwrap();
    session
}

/// The logits after some more tokens of both.
fn continued(session: &mut Session) -> Vec<f32> {
    block_on(session.decode(&[11, 12])).unwrap();
    block_on(session.decode(&[13, 14])).unwrap()
}

#[test]
fn forks_go_on_independently() {
    for (engine, model) in models("odd") {
        let alone = continued(&mut begun(&model, Element::F32));
        let mut session = begun(&model, Element::F32);
        let mut fork = session.fork().unwrap();
        block_on(fork.decode(&[20, 21])).unwrap();
        assert_eq!(
            (session.tokens(1), fork.tokens(1)),
            (&[9, 8, 7][..], &[9, 8, 7, 21][..]),
            "{engine}"
        );
        assert_eq!(continued(&mut session), alone, "{engine}: the fork changed what it came from");
        fork.truncate(0, 7).unwrap();
        fork.truncate(1, 3).unwrap();
        assert_eq!(continued(&mut fork), alone, "{engine}: the fork goes on differently");
        drop(session);
        assert_eq!(fork.len(0), 9);
    }
}

#[test]
fn saved_sessions_go_on_as_they_were() {
    let directory = Directory::temporary();
    let path = directory.0.join("session.safetensors");
    for name in ["odd", "llama"] {
        let models = models(name);
        for cache in [Element::F32, Element::F16] {
            if cache == Element::F16 && !context().capabilities().f16 {
                println!("NOT RUN: the device has no f16");
                continue;
            }
            for (engine, model) in &models {
                let mut session = begun(model, cache);
                block_on(session.save(&path)).unwrap();
                let saved = SafeTensors::open(&path).unwrap().tensor("keys.0.0").unwrap().dtype;
                assert_eq!(saved, if cache == Element::F16 { Dtype::F16 } else { Dtype::F32 });
                let expected = continued(&mut session);
                for (other, model) in &models {
                    let mut loaded = model.load_session(&path, two_sequences(cache)).unwrap();
                    assert_eq!(
                        (loaded.tokens(0), loaded.tokens(1)),
                        (&[1, 2, 3, 4, 5, 6, 7][..], &[9, 8, 7][..])
                    );
                    let found = continued(&mut loaded);
                    if engine == other {
                        assert_eq!(found, expected, "{name} on the {engine}, {cache:?}");
                    }
                    let off =
                        found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    // Elsewhere numbers round differently, to 16 bits perhaps; another text's would
                    // be far off.
                    let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
                    let bound = if cache == Element::F16 { 0.2 * largest } else { 2e-4 };
                    assert!(
                        off < bound,
                        "{name}: {off} from the {engine} to the {other}, {cache:?}"
                    );
                }
                // A session need not be as large as it was.
                let larger = SessionOptions::new(2, 7).kv_type(cache);
                assert_eq!(model.load_session(&path, larger).unwrap().len(0), 7);
            }
        }
    }
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1, "nothing else is left");
}

/// That the beginning of a text is not computed again shows where it was made another.
#[test]
fn what_a_session_has_is_not_computed_again() {
    let directory = Directory::temporary();
    let (path, altered) = (directory.0.join("session"), directory.0.join("altered"));
    for (engine, model) in models("odd") {
        let mut session = model.session(SessionOptions::new(1, 24)).unwrap();
        block_on(session.prefill(0, &[1, 2, 3, 4, 5, 6, 7])).unwrap();
        block_on(session.save(&path)).unwrap();
        changed(&SafeTensors::open(&path).unwrap(), &altered, None, |name, _, _, bytes| {
            if name.starts_with("values") {
                bytes.fill(0);
            }
            true
        });
        let go_on = |path: &Path, prompt: &[u32]| {
            let session = model.load_session(path, SessionOptions::new(1, 24)).unwrap();
            let generation = model
                .generate_ids_in(
                    session,
                    prompt,
                    &GenerateOptions::default().max_tokens(8).ignore_eos(true),
                )
                .unwrap();
            generation.into_iter().map(|token| token.unwrap().id).collect::<Vec<_>>()
        };
        let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_ne!(
            go_on(&altered, &prompt),
            go_on(&path, &prompt),
            "{engine}: all of it was computed"
        );
        let another = [2, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(
            go_on(&altered, &another),
            go_on(&path, &another),
            "{engine}: a text with nothing in common"
        );
    }
}

/// Of a model that differs in anything that it computes with, a session is refused.
#[test]
fn another_models_session_is_refused() {
    let directory = Directory::temporary();
    let (path, source) = (directory.0.join("session"), support::data("models").join("odd"));
    let copy = |config: &str, weights: &[u8]| {
        directory.write("config.json", config);
        directory.write("model.safetensors", weights);
        Model::builder(&directory.0).cpu().build().unwrap()
    };
    let (config, weights) = (
        fs::read_to_string(source.join("config.json")).unwrap(),
        fs::read(source.join("model.safetensors")).unwrap(),
    );
    let model = copy(&config, &weights);
    block_on(begun(&model, Element::F32).save(&path)).unwrap();
    let options = two_sequences(Element::F32);
    assert!(copy(&config, &weights).load_session(&path, options).is_ok());
    let file = SafeTensors::open(source.join("model.safetensors")).unwrap();
    let refused = |model: &Model, what: &str| {
        let error = model.load_session(&path, options).map(drop).expect_err(what).to_string();
        assert!(error.contains("another model"), "{what}: {error}");
    };
    let mut json: serde_json::Value = serde_json::from_str(&config).unwrap();
    json["rms_norm_eps"] = 0.25.into();
    refused(&copy(&json.to_string(), &weights), "eps");
    // The tensors lie one after another, to the end of the file.
    let mut end =
        weights.len() - file.names().iter().filter_map(|name| file.size(name)).sum::<usize>();
    for name in file.names() {
        end += file.size(&name).unwrap();
        let is_gain_or_scale = file.shape(&name).unwrap().len() == 1;
        if name.contains("layers.1") && is_gain_or_scale {
            // Its last number, a float, made another.
            let mut other = weights.clone();
            other[end - 1] ^= 0x01;
            refused(&copy(&config, &other), &name);
        }
    }
}

/// Writes a file with other tensors or metadata than a session's.
fn changed(
    from: &SafeTensors,
    path: &Path,
    model: Option<&str>,
    change: impl Fn(&str, &mut Dtype, &mut Vec<usize>, &mut Vec<u8>) -> bool,
) {
    let mut parts = Vec::new();
    for name in from.names() {
        let tensor = from.tensor(&name).unwrap();
        let (mut kind, mut shape, mut bytes) =
            (tensor.dtype, tensor.shape.to_vec(), tensor.bytes.to_vec());
        if change(&name, &mut kind, &mut shape, &mut bytes) {
            parts.push((name, kind, shape, bytes));
        }
    }
    let views = parts.iter().map(|(name, kind, shape, bytes)| {
        (name, TensorView::new(*kind, shape.clone(), bytes).unwrap())
    });
    let print = model.unwrap_or_else(|| from.metadata("model").unwrap());
    let metadata = HashMap::from([
        ("format".into(), "bitnet-wgpu session 1".into()),
        ("model".into(), print.into()),
    ]);
    safetensors::serialize_to_file(views, Some(metadata), path).unwrap();
}

#[test]
fn damaged_sessions_are_refused_by_name() {
    let directory = Directory::temporary();
    let (path, bad) =
        (directory.0.join("session.safetensors"), directory.0.join("bad.safetensors"));
    let [(_, gpu), (_, cpu)] = models("odd");
    block_on(begun(&cpu, Element::F32).save(&path)).unwrap();
    let sound = SafeTensors::open(&path).unwrap();
    let options = two_sequences(Element::F32);
    let refused = |expected: &str| {
        for model in [&gpu, &cpu] {
            let error = model.load_session(&bad, options).map(drop).unwrap_err();
            let is_format = matches!(error, Error::Format { .. } | Error::Unsupported { .. });
            assert!(is_format && error.to_string().contains(expected), "{expected}: {error}");
        }
    };
    changed(&sound, &bad, None, |_, _, _, _| true);
    assert!(cpu.load_session(&bad, options).is_ok(), "what is not changed is read");
    changed(&sound, &bad, Some("another"), |_, _, _, _| true);
    refused("another model");
    changed(&sound, &bad, None, |name, _, _, _| name != "values.1.1");
    refused("values.1.1");
    changed(&sound, &bad, None, |name, _, shape, bytes| {
        if name == "keys.1.0" {
            shape[0] -= 1;
            bytes.truncate(shape.iter().product::<usize>() * 4);
        }
        true
    });
    refused("keys.1.0");
    changed(&sound, &bad, None, |name, _, _, bytes| {
        if name == "values.0.1" {
            bytes[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        true
    });
    refused("NaN");
    changed(&sound, &bad, None, |name, kind, _, bytes| {
        if name == "values.0.1" {
            *kind = Dtype::F16;
            *bytes = vec![0; bytes.len() / 2];
            bytes[..2].copy_from_slice(&f16::INFINITY.to_le_bytes());
        }
        true
    });
    refused("inf");
    changed(&sound, &bad, None, |name, _, _, bytes| {
        if name == "tokens.0" {
            bytes[..4].copy_from_slice(&100_000u32.to_le_bytes());
        }
        true
    });
    refused("token 100000");
    changed(&sound, &bad, None, |name, kind, _, _| {
        if name == "tokens.0" {
            *kind = Dtype::F32;
        }
        true
    });
    refused("tokens.0");
    let bytes = fs::read(&path).unwrap();
    fs::write(&bad, &bytes[..bytes.len() - 5]).unwrap();
    refused("bytes");
    fs::copy(support::data("models").join("odd/model.safetensors"), &bad).unwrap();
    refused("not a saved session");

    assert!(matches!(cpu.load_session(directory.0.join("none"), options), Err(Error::Io { .. })));
    assert!(matches!(
        cpu.load_session(&path, SessionOptions::new(1, 24)),
        Err(Error::Invalid { .. })
    ));
    assert!(matches!(
        cpu.load_session(&path, SessionOptions::new(2, 6)),
        Err(Error::Context { needed: 7, capacity: 6 })
    ));
    let [_, (_, other)] = models("newer");
    assert!(
        other
            .load_session(&path, options)
            .map(drop)
            .unwrap_err()
            .to_string()
            .contains("another model")
    );
    assert!(matches!(
        block_on(begun(&cpu, Element::F32).save(directory.0.join("no/folder"))),
        Err(Error::Io { .. })
    ));
}
