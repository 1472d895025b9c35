//! Texts and conversations that go on in a session.

use crate::stream::models;
use bitnet_wgpu::{
    Element, Error,
    model::{
        GenerateOptions, Message, Model, Sampling, SessionOptions, Stop, Tool, ToolCallParser,
        ToolChoice,
    },
};
use support::{block_on, models::on_gpu_and_cpu};

/// Options for a few tokens.
fn few(tokens: usize) -> GenerateOptions {
    GenerateOptions::default().max_tokens(tokens).ignore_eos(true)
}

fn answer(model: &Model, messages: &[Message]) -> String {
    block_on(model.chat(messages, &few(8)).unwrap().all()).unwrap().text
}

#[test]
fn a_conversation_answers_as_chat_does() {
    for (engine, model) in models() {
        let session = model.session(SessionOptions::new(1, 300)).unwrap();
        let mut chat = model.conversation(session).unwrap();
        let mut messages = Vec::new();
        for question in ["Tell me a tale.", "Another one."] {
            messages.push(Message::new("user", question));
            let turn = block_on(chat.ask(question, &few(8))).unwrap();
            let cached = turn.cached_tokens();
            for token in &mut *turn {
                token.unwrap();
            }
            assert_eq!(turn.stop(), Some(Stop::MaxTokens), "{engine}");
            let text = turn.text().to_owned();
            assert_eq!(text, answer(&model, &messages), "{engine}");
            // Computed before: all of the first turn but its last token.
            assert!((cached > 0) == (messages.len() > 1), "{engine}: {cached}");
            messages.push(Message::new("assistant", text));
        }
        block_on(chat.session()).unwrap();
        assert_eq!(*chat.messages(), messages, "{engine}");
    }
}

#[test]
fn a_refused_question_loses_nothing() {
    for (engine, model) in models() {
        let session = model.session(SessionOptions::new(1, 60)).unwrap();
        let mut chat = model.conversation(session).unwrap();
        let first = block_on(chat.ask("Tell me a tale.", &few(8))).unwrap();
        assert_eq!((&mut *first).into_iter().filter(Result::is_ok).count(), 8, "{engine}");
        let held = block_on(chat.session()).unwrap().tokens(0).to_vec();
        let messages = chat.messages().clone();

        let long = "And then? ".repeat(40);
        let refused = block_on(chat.ask(long.as_str(), &few(8))).map(drop);
        assert!(
            matches!(refused, Err(Error::Context { capacity: 60, .. })),
            "{engine}: {refused:?}"
        );
        let wrong = few(8).sampling(Sampling::GREEDY.top_p(7.0));
        let refused = block_on(chat.ask("Another one.", &wrong)).map(drop);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{engine}: {refused:?}");
        assert_eq!(*chat.messages(), messages, "{engine}");
        let session = block_on(chat.session()).unwrap();
        assert_eq!(session.tokens(0), held, "{engine}");

        block_on(session.grow(400)).unwrap();
        let turn = block_on(chat.ask(long.as_str(), &few(8))).unwrap();
        assert!(turn.cached_tokens() > 0, "{engine}");
        for token in &mut *turn {
            token.unwrap();
        }
        let text = turn.text().to_owned();
        let all = [&messages[..], &[Message::new("user", long)]].concat();
        assert_eq!(text, answer(&model, &all), "{engine}");
    }
}

#[test]
fn a_question_without_an_answer_is_forgotten() {
    for (engine, model) in models() {
        let session = model.session(SessionOptions::new(1, 300)).unwrap();
        let mut chat = model.conversation(session).unwrap();
        chat.messages().push(Message::new("system", "Tell tales."));
        block_on(chat.ask("Never answered", &few(8))).unwrap();
        // Read in part: what was read is the message.
        let turn = block_on(chat.ask("Tell me a tale.", &few(200))).unwrap();
        turn.into_iter().take(3).for_each(|token| drop(token.unwrap()));
        block_on(chat.session()).unwrap();
        let messages = chat.messages();
        let roles: Vec<_> = messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant"], "{engine}");
        assert_eq!(messages[1].content, "Tell me a tale.", "{engine}");
        assert_eq!(messages[2].content, answer_begins(&model, messages), "{engine}");
    }
}

/// The first three tokens of an answer.
fn answer_begins(model: &Model, messages: &[Message]) -> String {
    block_on(model.chat(&messages[..2], &few(3)).unwrap().all()).unwrap().text
}

#[test]
fn text_goes_on_in_a_session() {
    for (engine, model) in models() {
        let mut session = model.session(SessionOptions::new(1, 200)).unwrap();
        let mut text = "Once upon a time".to_owned();
        for (n, next) in [" Then", " At last"].into_iter().enumerate() {
            let mut tale = model.generate_in(session, &text, &few(8)).unwrap();
            assert!((tale.cached_tokens() > 0) == (n > 0), "{engine}");
            let ids: Vec<u32> = (&mut tale).into_iter().map(|token| token.unwrap().id).collect();
            let alone = block_on(model.generate(&text, &few(8)).unwrap().all()).unwrap();
            assert_eq!((tale.ids(), tale.text()), (&alone.ids[..], &alone.text[..]), "{engine}");
            assert_eq!(tale.ids(), ids, "{engine}");
            text = text + tale.text() + next;
            session = block_on(tale.into_session()).unwrap();
        }
    }
}

#[test]
fn the_room_of_a_session_can_be_set() {
    for (engine, model) in models() {
        let room = |options: &GenerateOptions| {
            let tale = model.generate("Once upon a time", options).unwrap();
            block_on(tale.into_session()).unwrap().options().capacity()
        };
        let prompt = model.encode_prompt("Once upon a time").unwrap().len();
        assert_eq!(room(&few(8)), prompt + 7, "{engine}");
        assert_eq!(room(&few(8).capacity(100)), 100, "{engine}");
        assert_eq!(room(&few(8).capacity(3)), prompt + 7, "{engine}");
        assert_eq!(room(&few(8).capacity(usize::MAX)), model.config().context, "{engine}");
    }
}

/// Gemma's layers that see a window keep fewer tokens than others.
#[test]
fn a_session_that_grows_keeps_its_logits() {
    for (engine, model) in ["newer", "gemma3"].into_iter().flat_map(on_gpu_and_cpu) {
        for kv_type in [Element::F32, Element::F16] {
            let session = |capacity| {
                let options = SessionOptions::new(2, capacity).kv_type(kv_type);
                let mut session = model.session(options).unwrap();
                for (sequence, ids) in [&[1, 2, 3, 4, 5, 6, 7][..], &[9, 8]].into_iter().enumerate()
                {
                    block_on(session.prefill(sequence, ids)).unwrap();
                }
                session
            };
            let (mut grown, mut large) = (session(8), session(40));
            block_on(grown.decode(&[10, 11])).unwrap();
            block_on(large.decode(&[10, 11])).unwrap();
            assert!(block_on(grown.decode(&[12, 13])).is_err(), "{engine}: it is full");
            block_on(grown.grow(40)).unwrap();
            assert_eq!((grown.options(), grown.tokens(1)), (large.options(), large.tokens(1)));
            for ids in [[12, 13], [14, 15]] {
                let logits = [&mut grown, &mut large].map(|it| block_on(it.decode(&ids)).unwrap());
                assert!(logits[0] == logits[1], "{engine} in {kv_type}");
            }
            let most = model.config().context;
            assert!(matches!(block_on(grown.grow(most + 1)), Err(Error::Context { .. })));
            assert_eq!((grown.len(0), grown.options().capacity()), (10, 40), "{engine}");
        }
    }
}

/// The grammar of a call makes a model that knows no tools call one.
#[test]
fn a_conversation_goes_on_after_tool_calls() {
    const TEMPLATE: &str = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ '\\n' }}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    const SCHEMA: &str = r#"{"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": false}"#;
    for (engine, model) in models() {
        let tokenizer = model.tokenizer().unwrap().with_chat_template(TEMPLATE);
        let tokenizer = tokenizer.with_tools([Tool::new("weather", SCHEMA).unwrap()]).unwrap();
        let parser = ToolCallParser::new(&tokenizer).unwrap();
        let grammar = parser.grammar(&ToolChoice::Required, false).unwrap();
        let session = model.session(SessionOptions::new(1, 400)).unwrap();
        let mut chat = model.conversation(session).unwrap().with_tokenizer(tokenizer);
        let options = GenerateOptions::default().max_tokens(120).grammar(grammar);
        let answer = block_on(chat.ask("How is the weather in Oslo?", &options)).unwrap();
        assert!((&mut *answer).into_iter().all(|token| token.is_ok()), "{engine}");
        block_on(chat.session()).unwrap();
        let Message { content, tool_calls, .. } = chat.messages().last().unwrap().clone();
        let [call] = &tool_calls[..] else { panic!("{engine}: {tool_calls:?}") };
        assert_eq!((content.as_str(), call.name.as_str()), ("", "weather"), "{engine}");
        let cities = [r#"{"city": "Oslo"}"#, r#"{"city": "Rome"}"#];
        assert!(cities.contains(&call.arguments.as_str()), "{engine}: {}", call.arguments);
        chat.messages().push(Message::tool_result(call.id.as_str(), "Rain."));
        let reply = block_on(chat.reply(&few(4))).unwrap();
        assert_eq!((&mut *reply).into_iter().filter(Result::is_ok).count(), 4, "{engine}");
        assert!(reply.cached_tokens() > 0, "{engine}");
        block_on(chat.session()).unwrap();
        let roles: Vec<&str> = chat.messages().iter().map(|it| it.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "assistant"], "{engine}");
        // A reply of which nothing is read leaves the messages as they are.
        block_on(chat.reply(&few(4))).unwrap();
        block_on(chat.session()).unwrap();
        assert_eq!(chat.messages().len(), 4, "{engine}");
    }
}
