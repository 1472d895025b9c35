//! An app on tokio with its own wgpu device: streams a text while it does other things, gives one
//! up, puts BitLinear between its own passes, and runs a kernel of its own. `app MODEL`; on any difference from what it
//! should be, it panics.

mod scale;

use bitnet::{
    Context, ErrorKind, Tensor, bitnet as ops, cpu,
    model::{GenerateOptions, Message, Model, ModelFiles, Sampling, SessionOptions, Stop},
    wgpu,
};
use futures_util::StreamExt;
use std::{cell::Cell, error::Error, path::Path, rc::Rc, time::Duration};
use tokio::{task, time};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: app MODEL")?;
    task::LocalSet::new().run_until(run(path.as_ref())).await
}

async fn run(path: &Path) -> Result<(), Box<dyn Error>> {
    let context = open().await?;
    println!("{}", context.capabilities().adapter);
    in_the_apps_buffers(&context).await?;
    scale::scale(&context).await?;
    for model in [Model::builder(path).device(&context).build()?, Model::builder(path).cpu().build()?] {
        println!("{model:?}");
        streams(&model).await?;
        is_given_up(&model).await?;
        talks(&model).await?;
        tells_several(&model).await?;
    }
    // Errors say what can be done about them.
    let missing = Model::builder(path.join("nothing")).cpu().build().map(drop).expect_err("there is no such file");
    assert_eq!(missing.kind(), ErrorKind::Io, "{missing}");
    let files = ModelFiles::open(path)?;
    let wrong = GenerateOptions::recommended(files.config()).sampling(Sampling::GREEDY.top_p(7.0));
    let refused = files.check(&files.encode_prompt("Once")?, &wrong).expect_err("top_p is beyond 1");
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    println!("all as it should be");
    Ok(())
}

/// The app's device, with what the library can use.
async fn open() -> Result<Context, Box<dyn Error>> {
    let instance = wgpu::Instance::default();
    let adapter = instance.request_adapter(&wgpu::RequestAdapterOptions::default()).await?;
    let (required_features, required_limits) = Context::device_needs(&adapter);
    let descriptor = wgpu::DeviceDescriptor { required_features, required_limits, ..Default::default() };
    let (device, queue) = adapter.request_device(&descriptor).await?;
    Ok(Context::from_wgpu(&adapter, device, queue).await?)
}

/// BitLinear reads what the app's encoder put into one buffer, and writes another.
async fn in_the_apps_buffers(context: &Context) -> Result<(), Box<dyn Error>> {
    use wgpu::BufferUsages as Usage;
    let (rows, columns) = (64, 256);
    let buffer = |len: usize| {
        let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        context.device().create_buffer(&wgpu::BufferDescriptor { label: None, size: 4 * len as u64, usage, mapped_at_creation: false })
    };
    let x: Vec<f32> = (0..columns).map(|i| (i % 7) as f32 - 3.0).collect();
    let (upload, input, output) = (context.upload(&x, [1, columns])?, buffer(columns), buffer(rows));
    let weights: Vec<f32> = (0..rows * columns).map(|i| (i as f32).sin()).collect();
    let packed = cpu::quantize_weights(&weights, [rows, columns], ops::WeightQuantizer::absmean())?;
    let mut recorded = context.encoder("app");
    let (on_gpu, y) = (packed.upload(context)?, Tensor::<f32>::from_buffer(context, output, [1, rows])?);
    ops::BitLinear::new(&on_gpu).forward_into(&mut recorded, &Tensor::<f32>::from_buffer(context, input.clone(), [1, columns])?, &y)?;
    let mut encoder = context.device().create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(upload.buffer(), 0, &input, 0, 4 * columns as u64);
    recorded.finish().encode(&mut encoder);
    context.queue().submit([encoder.finish()]);
    assert_eq!(y.read().await?, cpu::BitLinear::new(&cpu::InterleavedTernary::new(&packed)).forward(&x, 1)?);
    Ok(())
}

/// Tokens come one by one while a second task ticks on the same thread.
async fn streams(model: &Model) -> Result<(), Box<dyn Error>> {
    let ticks = Rc::new(Cell::new(0));
    let counter = ticks.clone();
    let ticker = task::spawn_local(async move {
        loop {
            time::sleep(Duration::from_millis(1)).await;
            counter.set(counter.get() + 1);
        }
    });
    let options = GenerateOptions::default().max_tokens(48).sampling(Sampling::GREEDY.temperature(0.8).top_k(40).seed(7)).ignore_eos(true);
    let mut story = model.generate("Once upon a time", &options)?;
    let (mut text, mut count) = (String::new(), 0);
    while let Some(token) = story.next().await {
        text += &token?.text;
        count += 1;
    }
    ticker.abort();
    println!("Once upon a time{text}\n({count} tokens, {:?}, {} ticks)", story.stop(), ticks.get());
    assert_eq!((count, story.stop()), (48, Some(Stop::MaxTokens)));
    assert!(ticks.get() > 0, "the executor was blocked");
    // The same text, up to a full stop.
    let told = model.generate("Once upon a time", &options.clone().stop(["."]))?;
    let told: String = told.map(|token| token.map(|token| token.text)).collect::<Vec<_>>().await.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(Some(told.as_str()), text.split('.').next());
    Ok(())
}

/// A generation ends with its task, or with a timeout.
async fn is_given_up(model: &Model) -> Result<(), Box<dyn Error>> {
    let options = GenerateOptions::default().max_tokens(usize::MAX).ignore_eos(true);
    let generation = model.generate("Once upon a time", &options)?;
    assert!(time::timeout(Duration::from_millis(100), generation.count()).await.is_err(), "it goes on for seconds");
    let generation = model.generate("Once upon a time", &options)?;
    let task = task::spawn_local(generation.count());
    time::sleep(Duration::from_millis(30)).await;
    task.abort();
    assert!(task.await.is_err_and(|error| error.is_cancelled()));
    Ok(())
}

/// A conversation computes only what is new, and goes on from a fork or a file as from itself.
async fn talks(model: &Model) -> Result<(), Box<dyn Error>> {
    let options = GenerateOptions::default().max_tokens(12);
    let mut chat = model.conversation(model.session(SessionOptions::new(1, 300))?)?;
    let answer = chat.ask("Tell me a tale.", &options).await?;
    while let Some(token) = answer.next_token().await {
        token?;
    }
    let known = chat.session().await?.len(0);
    let fork = chat.session().await?.fork()?;
    let messages = [chat.messages().clone(), vec![Message::new("user", "Another one.")]].concat();
    let prompt = model.tokenizer()?.chat(&messages)?;
    let file = std::env::temp_dir().join(format!("app-{}.safetensors", std::process::id()));
    fork.save(&file).await?;
    let loaded = model.load_session(&file, SessionOptions::new(1, 300))?;
    std::fs::remove_file(&file)?;
    let answer = chat.ask("Another one.", &options).await?;
    let tokens: Vec<_> = answer.collect().await;
    let mut answers = vec![tokens.into_iter().collect::<Result<Vec<_>, _>>()?];
    for session in [fork, loaded] {
        let tokens: Vec<_> = model.generate_ids_in(session, &prompt, &options)?.collect().await;
        answers.push(tokens.into_iter().collect::<Result<Vec<_>, _>>()?);
    }
    assert!(known > 10 && answers[0] == answers[1] && answers[0] == answers[2]);
    Ok(())
}

/// Several texts side by side, each as alone.
async fn tells_several(model: &Model) -> Result<(), Box<dyn Error>> {
    let (options, prompts) = (GenerateOptions::default().max_tokens(10), ["Once upon a time", "The bear"]);
    let batch = model.generate_batch(&prompts, &options).await?;
    for (prompt, text) in prompts.iter().zip(batch.into_iter().map(|generated| generated.text)) {
        let alone: Vec<_> = model.generate(prompt, &options)?.map(|token| token.map(|token| token.text)).collect().await;
        assert_eq!(text, alone.into_iter().collect::<Result<String, _>>()?, "{prompt}");
    }
    Ok(())
}
