/* The command line: reads sentences and prints their similarities. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <utf8proc.h>

#include "engine.h"
#include "output.h"

enum { EXIT_USAGE = 2, DEFAULT_BATCH = 8 };

static const char usage[] =
    "usage: minilm --model DIR [options] SENTENCE...\n"
    "\n"
    "Embeds sentences and prints the similarity of each pair. Without sentences on the command line, they "
    "are\n"
    "read from standard input, one per line.\n"
    "\n"
    "  --model DIR      folder of the model: model.safetensors, vocab.txt, config.json, ...\n"
    "  --budget B       ceiling on device memory: bytes, 20MiB, 20MB, or 25% of the model (default 25%)\n"
    "  --resident       no ceiling: all weights that were used stay on the device\n"
    "  --device NAME    a device whose memory the host can address (default host)\n"
    "  --batch N        sentences per step (default 8)\n"
    "  --learn-order    do not tell the library the order of the layers\n"
    "  --json           print one JSON object with the embeddings\n"
    "  --help           this text\n";

struct command {
    const char* model;
    struct weights_options weights;
    size_t batch;
    bool json;
    bool help;
};

struct sentences {
    char** texts;
    size_t count;
};

/** Parses bytes with a unit, or a percentage. */
static bool parse_budget(const char* text, struct weights_options* out) {
    static const struct {
        const char* unit;
        double bytes;
    } units[] = {{"", 1}, {"kB", 1e3}, {"KiB", 1024}, {"MB", 1e6}, {"MiB", 1048576}, {"GB", 1e9}, {"GiB", 1073741824}};
    char* end = NULL;
    const double value = strtod(text, &end);

    out->budget_bytes = 0;
    out->budget_percent = 0;
    if (end == text || !(value > 0) || value > 1e15) return false;
    if (strcmp(end, "%") == 0) {
        out->budget_percent = value;
        return true;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(end, units[i].unit) == 0) out->budget_bytes = (uint64_t)(value * units[i].bytes);
    return out->budget_bytes > 0;
}

static bool parse_count(const char* text, size_t* out) {
    char* end = NULL;
    const long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || value < 1 || value > 1000000) return false;
    *out = (size_t)value;
    return true;
}

static bool parse_options(int argc, char** argv, struct command* out, struct error* error) {
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"budget", required_argument, NULL, 'b'},
        {"resident", no_argument, NULL, 'r'},
        {"device", required_argument, NULL, 'd'},
        {"batch", required_argument, NULL, 'n'},
        {"learn-order", no_argument, NULL, 'l'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    bool resident = false;

    *out = (struct command){.weights = {.device = "host", .budget_percent = 25}, .batch = DEFAULT_BATCH};
    for (int option = 0; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool ok = true;
        switch (option) {
            case 'm':
                out->model = optarg;
                break;
            case 'b':
                ok = parse_budget(optarg, &out->weights);
                break;
            case 'r':
                resident = true;
                break;
            case 'd':
                out->weights.device = optarg;
                break;
            case 'n':
                ok = parse_count(optarg, &out->batch);
                break;
            case 'l':
                out->weights.learn_order = true;
                break;
            case 'j':
                out->json = true;
                break;
            case 'h':
                out->help = true;
                return true;
            default:
                return error_set(error, "see --help");
        }
        if (!ok) return error_set(error, "%s: not a valid value for --%s", optarg, option == 'b' ? "budget" : "batch");
    }
    if (out->model == NULL) return error_set(error, "--model is missing; see --help");
    if (resident) out->weights.budget_percent = 0, out->weights.budget_bytes = 0;
    return true;
}

static bool is_utf8(const char* text) {
    const size_t bytes = strlen(text);
    utf8proc_int32_t c = 0;

    for (size_t at = 0; at < bytes;) {
        const utf8proc_ssize_t used =
            utf8proc_iterate((const utf8proc_uint8_t*)text + at, (utf8proc_ssize_t)(bytes - at), &c);
        if (used < 1) return false;
        at += (size_t)used;
    }
    return true;
}

static bool add_sentence(struct sentences* sentences, const char* text, struct error* error) {
    if (!is_utf8(text)) return error_set(error, "sentence %zu is not UTF-8", sentences->count + 1);
    char** texts = realloc(sentences->texts, (sentences->count + 1) * sizeof *texts);
    if (texts == NULL) return error_out_of_memory(error);
    sentences->texts = texts;
    texts[sentences->count] = strdup(text);
    if (texts[sentences->count] == NULL) return error_out_of_memory(error);
    sentences->count++;
    return true;
}

/** Reads the lines of standard input. Empty lines are left out. */
static bool read_lines(struct sentences* sentences, struct error* error) {
    char* line = NULL;
    size_t capacity = 0;
    bool ok = true;

    while (ok && getline(&line, &capacity, stdin) > 0) {
        line[strcspn(line, "\r\n")] = '\0';
        ok = line[0] == '\0' || add_sentence(sentences, line, error);
    }
    if (ok && ferror(stdin)) ok = error_set(error, "standard input: %s", strerror(errno));
    free(line);
    return ok;
}

static bool embed_and_print(struct engine* engine, const struct command* command, const struct sentences* sentences,
                            struct error* error) {
    const size_t dimensions = engine_dimensions(engine);
    float* vectors = malloc(sentences->count * dimensions * sizeof *vectors);
    struct results results = {
        .sentences = sentences->texts, .count = sentences->count, .dimensions = dimensions, .vectors = vectors};
    bool ok = vectors != NULL || error_out_of_memory(error);

    ok = ok &&
         engine_embed(engine, (const char* const*)sentences->texts, sentences->count, command->batch, vectors, error) &&
         engine_read_report(engine, &results.streamed, error);
    if (ok && command->json)
        ok = output_json(&results, error);
    else if (ok)
        output_table(&results);
    free(vectors);
    return ok;
}

static bool run(const struct command* command, char** arguments, struct error* error) {
    struct sentences sentences = {0};
    struct engine* engine = NULL;
    bool ok = true;

    for (char** argument = arguments; ok && *argument != NULL; argument++)
        ok = add_sentence(&sentences, *argument, error);
    if (ok && *arguments == NULL) ok = read_lines(&sentences, error);
    if (ok && sentences.count == 0) ok = error_set(error, "there are no sentences");
    ok = ok && engine_open(command->model, &command->weights, &engine, error) &&
         embed_and_print(engine, command, &sentences, error);
    engine_close(engine);
    for (size_t i = 0; i < sentences.count; i++) free(sentences.texts[i]);
    free(sentences.texts);
    if (ok && fflush(stdout) != 0) ok = error_set(error, "standard output: %s", strerror(errno));
    return ok;
}

int main(int argc, char** argv) {
    struct command command;
    struct error error;
    const bool parsed = parse_options(argc, argv, &command, &error);

    if (parsed && command.help) {
        fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    if (parsed && run(&command, argv + optind, &error)) return EXIT_SUCCESS;
    fprintf(stderr, "minilm: %s\n", error.text);
    return parsed ? EXIT_FAILURE : EXIT_USAGE;
}
