#include "training_options.h"

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "option_kinds.h"

namespace stagehand::cli {

namespace {

// Above the sizes of any transformer. Products of them stay below 2^64.
constexpr std::uint64_t largest_size = 10'000'000;

void add_count(CLI::App* app, const char* flag, std::uint64_t& value, const char* what) {
    add_number<std::uint64_t>(app, flag, value, 1, largest_size,
                              fmt::format("a whole number from 1 to {}", largest_size), what, "N");
}

// A positive decimal number in front of a unit.
std::optional<double> number_before(const std::string& text, std::string_view unit) {
    if (!text.ends_with(unit)) return std::nullopt;
    const auto value = read_number<double>(std::string_view(text).substr(0, text.size() - unit.size()));
    return value && std::isfinite(*value) && *value > 0 ? value : std::nullopt;
}

double parse_operations(const std::string& text) {
    for (const auto& [unit, size] : {std::pair{"GFLOPS", 1e9}, std::pair{"TFLOPS", 1e12}, std::pair{"PFLOPS", 1e15}}) {
        const auto value = number_before(text, unit);
        if (value && *value * size <= 1e21) return *value * size;
    }
    throw model::QuantityError(
        fmt::format("{} is not a speed of arithmetic, such as 500TFLOPS or 1.2PFLOPS", model::in_quotes(text)));
}

double parse_positive(const std::string& text, double least, double largest, const char* what) {
    const auto value = number_before(text, "");
    if (!value || *value < least || *value > largest) {
        throw model::QuantityError(
            fmt::format("{} is not {} from {:g} to {:g}", model::in_quotes(text), what, least, largest));
    }
    return *value;
}

const char* const training_only[] = {"--layers",    "--hidden-size", "--heads",   "--kv-heads",   "--intermediate-size",
                                     "--gated-mlp", "--vocab-size",  "--seq-len", "--batch-size", "--dtype",
                                     "--peak",      "--slowdown",    "--flops",   "--step-ms",    "--memory-bandwidth"};
const char* const streaming_only[] = {"--budget", "--order", "--compute-ms", "--max-block", "--unordered",
                                      "--kinds",  "--curve", "--all-blocks", "--experts"};
const char* const model_sizes[] = {"--layers",    "--hidden-size", "--kv-heads", "--intermediate-size",
                                   "--gated-mlp", "--vocab-size"};

bool is_given(const CLI::App& app, const char* name) { return app.get_option(name)->count() > 0; }

[[noreturn]] void refuse_option(const char* name, const std::string& why) { throw CLI::ValidationError(name, why); }

void check_training(const CLI::App& app, const TrainingOptions& training) {
    for (const char* name : streaming_only)
        if (is_given(app, name)) refuse_option(name, "has no meaning with --training");
    if (is_given(app, "MODEL")) {
        for (const char* name : model_sizes)
            if (is_given(app, name)) refuse_option(name, "is given by MODEL; leave one of them out");
    } else {
        for (const char* name : {"--layers", "--hidden-size"})
            if (!is_given(app, name))
                refuse_option(name, fmt::format("is required with --training, unless there is a MODEL: {} N", name));
    }
    if (!is_given(app, "--seq-len"))
        refuse_option("--seq-len", "is required with --training: --seq-len N, the tokens of a sequence");
    if (is_given(app, "--peak") && is_given(app, "--slowdown"))
        refuse_option("--slowdown", "is given beside --peak; a plan has one target");
    if (is_given(app, "--flops") == is_given(app, "--step-ms")) {
        refuse_option("--flops",
                      "or --step-ms is required with --training, and only one of them: the speed of the device's "
                      "arithmetic, such as 500TFLOPS, or the time of a plain step");
    }
    if (training.heads != 0 && training.kv_heads > training.heads) refuse_option("--kv-heads", "are more than --heads");
}

}  // namespace

void add_training_options(CLI::App* app, PlanOptions& options) {
    TrainingOptions& training = options.training;
    add_flag(app, "--training", options.is_training,
             "Plan a training step of a transformer instead: what is kept, spilled and computed again");
    add_count(app, "--layers", training.layers, "With --training: the number of layers");
    add_count(app, "--hidden-size", training.hidden, "With --training: the width of a layer's input");
    add_count(app, "--heads", training.heads, "With --training: heads of the attention; by default of width 128");
    add_count(app, "--kv-heads", training.kv_heads, "With --training: heads of keys and values; by default --heads");
    add_count(app, "--intermediate-size", training.intermediate,
              "With --training: the width inside the MLP; by default 4 times --hidden-size");
    add_flag(app, "--gated-mlp", training.gated, "With --training: the MLP has a gate, as SwiGLU has");
    add_count(app, "--vocab-size", training.vocabulary,
              "With --training: words of the embedding and of the loss; by default there are neither");
    add_count(app, "--seq-len", training.sequence, "With --training: tokens of a sequence");
    add_count(app, "--batch-size", training.batch, "With --training: sequences of a step; by default 1");
    app->add_option_function<std::string>(
           "--dtype",
           [&training](const std::string& text) {
               if (text != "bf16" && text != "fp16" && text != "fp32")
                   throw CLI::ValidationError(
                       "--dtype", one_line(fmt::format("{} is not a type; the types are bf16, fp16 and fp32",
                                                       model::in_quotes(text))));
               training.element_bytes = text == "fp32" ? 4 : 2;
               training.dtype = text;
           },
           "With --training: the type of weights, gradients and activations: bf16, fp16, fp32")
        ->type_name("TYPE")
        ->option_text("TYPE [bf16]");
    add_quantity(app, "--peak", "With --training: the least time under this peak of device memory", "SIZE",
                 [&training](const std::string& text) {
                     training.peak_bytes = model::parse_bytes(text);
                     if (training.peak_bytes == 0) {
                         throw model::QuantityError(model::in_quotes(text) + " is no memory at all");
                     }
                 });
    add_quantity(app, "--slowdown", "With --training: the lowest peak within this many times the plain step", "X",
                 [&training](const std::string& text) {
                     training.slowdown = parse_positive(text, 1, 1000, "a number of times");
                 });
    add_quantity(app, "--flops", "With --training: the speed that products of matrices reach, such as 500TFLOPS", "X",
                 [&training](const std::string& text) { training.flops = parse_operations(text); });
    add_quantity(app, "--step-ms", "With --training: milliseconds of a plain step, from which the speed follows", "T",
                 [&training](const std::string& text) {
                     training.step_ms = parse_positive(text, 1e-3, 1e9, "a number of milliseconds");
                 });
    add_quantity(app, "--memory-bandwidth", "With --training: the speed of the device's memory [1TB/s]", "X",
                 [&training](const std::string& text) { training.memory_bandwidth = model::parse_rate(text); });
}

void check_plan_options(const CLI::App& app, const PlanOptions& options) {
    if (options.is_training) {
        check_training(app, options.training);
        return;
    }
    for (const char* name : training_only)
        if (is_given(app, name)) refuse_option(name, "needs --training");
    for (const char* name : {"--kinds", "--unordered"})
        if (!options.experts.empty() && is_given(app, name)) refuse_option(name, "has no meaning with --experts");
    for (const char* name : {"MODEL", "--budget"})
        if (!is_given(app, name)) throw CLI::RequiredError(name);
}

}  // namespace stagehand::cli
