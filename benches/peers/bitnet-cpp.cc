// What benches/peers/cpu runs of bitnet.cpp, through the library that it builds: `bitnet-cpp FILE THREADS ROOM TOKENS RUNS PREFILLS CONTEXTS
// PROMPTS PROMPT`, lists with commas, prints JSON of what `llama` in benches/peers/cpu gives, by the same steps. How it is built is said there.

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static std::vector<int> list(const char * text) {
    std::vector<int> numbers;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) numbers.push_back(std::stoi(part));
    return numbers;
}

struct Engine {
    llama_context * context;
    llama_sampler * greedy;
    int vocab;

    llama_token step(std::vector<llama_token> ids, int place) {
        if (llama_decode(context, llama_batch_get_one(ids.data(), int(ids.size()), place, 0)) != 0) {
            fprintf(stderr, "bitnet.cpp: llama_decode failed\n");
            exit(1);
        }
        return llama_sampler_sample(greedy, context, -1);
    }

    // The token after a prompt, which is another for each `first`.
    llama_token prompt(int length, int first = 0) {
        llama_kv_cache_clear(context);
        std::vector<llama_token> ids;
        for (int i = 0; i < length; i++) ids.push_back(llama_token((long(first) + i) * 7919 % vocab));
        return step(ids, 0);
    }

    double prefill(int length) {
        double start = now();
        prompt(length);
        return now() - start;
    }

    double decode(int length, int tokens) {
        llama_token token = prompt(length);
        double start = now();
        for (int i = 0; i < tokens; i++) token = step({token}, length + i);
        return tokens / (now() - start);
    }
};

int main(int argc, char ** argv) {
    if (argc != 10) {
        fprintf(stderr, "usage: bitnet-cpp FILE THREADS ROOM TOKENS RUNS PREFILLS CONTEXTS PROMPTS PROMPT\n");
        return 2;
    }
    int threads = atoi(argv[2]), room = atoi(argv[3]), tokens = atoi(argv[4]), runs = atoi(argv[5]), prompts = atoi(argv[8]), prompt = atoi(argv[9]);
    std::vector<int> prefills = list(argv[6]), contexts = list(argv[7]);
    int longest = *std::max_element(prefills.begin(), prefills.end());

    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model * model = llama_load_model_from_file(argv[1], llama_model_default_params());
    if (!model) {
        fprintf(stderr, "bitnet.cpp cannot read %s\n", argv[1]);
        return 1;
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = room;
    params.n_batch = params.n_ubatch = longest;
    params.n_threads = params.n_threads_batch = threads;
    Engine engine{llama_new_context_with_model(model, params), llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_n_vocab(model)};
    llama_sampler_chain_add(engine.greedy, llama_sampler_init_greedy());

    printf("{\"first tokens\": [");
    for (int first = 0; first < prompts; first++) printf("%s%d", first ? ", " : "", engine.prompt(prompt, first));
    printf("]");
    for (int length : prefills) {
        engine.prefill(length);
        std::vector<double> times;
        for (int i = 0; i < runs; i++) times.push_back(engine.prefill(length));
        std::sort(times.begin(), times.end());
        printf(", \"prefill %d\": %f", length, length / times[times.size() / 2]);
    }
    for (int length : contexts) printf(", \"decode after %d\": %f", length, engine.decode(length, tokens));
    printf("}\n");
}
