// `stagehand release` and `stagehand resume`: a running process gives the memory of its device back, or takes it again.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "exit_code.h"
#include "interrupt.h"
#include "json_output.h"
#include "model/quantity.h"
#include "model/text.h"
#include "options.h"
#include "process_clients.h"
#include "terminal.h"

namespace stagehand::cli {

namespace {

std::string body_of(const OccupancyOptions& options) {
    // Tags that are in the wanted state already are left out, so that the command may be repeated.
    Json body = {{"if_needed", true}, {"wait_seconds", options.wait_seconds}};
    if (!options.tags.empty()) body["tags"] = options.tags;
    if (options.drop) body["stage_to_cpu"] = false;
    return body.dump();
}

Json parse_answer(const std::string& path, const ControlAnswer& answer) {
    Json body = Json::parse(answer.body, nullptr, false);
    if (!body.is_object() || !body.contains("message") || !body["message"].is_string()) {
        refuse(path, fmt::format("is no control of libstagehand: its answer has the status {} and no message",
                                 answer.status));
    }
    return body;
}

[[noreturn]] void report_refusal(const ControlAnswer& answer, const Json& body) {
    // A wrong tag or token is a mistake on the command line. Everything else is the process's reason.
    const bool usage = answer.status == 400 || answer.status == 401;
    std::string text = model::printable(body["message"].get<std::string>(), 1000);
    if (answer.status == 401) text = "the process wants its token: set STAGEHAND_CONTROL_TOKEN";
    throw CommandError(usage ? ExitCode::usage : ExitCode::failure, text);
}

std::string summary(const OccupancyOptions& options, const Json& body) {
    if (!body.value("changed", false)) {
        return fmt::format("nothing to do: {}",
                           options.resumes ? "nothing is released" : "everything is released already");
    }
    const auto tags = body.value("tag_count", 0);
    return fmt::format("{} {} {}, {} of device memory, in {:.3g} s", options.resumes ? "resumed" : "released", tags,
                       tags == 1 ? "tag" : "tags", model::format_bytes(body.value("device_bytes", std::uint64_t{0})),
                       body.value("seconds", 0.0));
}

}  // namespace

int occupancy_command(const OccupancyOptions& options) {
    if (!options.process.empty() && !options.socket.empty())
        throw CommandError(ExitCode::usage, "PROCESS and --socket are both given; give one of them");
    if (!options.socket.empty() && !options.device.empty())
        throw CommandError(ExitCode::usage, "--socket and --device are both given; a socket belongs to one device");
    catch_interrupts();
    const std::string path = options.socket.empty() ? find_control(options.process, options.device) : options.socket;
    const char* const token = std::getenv("STAGEHAND_CONTROL_TOKEN");
    ControlAnswer answer;
    const char* const target = options.resumes ? "/resume_memory_occupation" : "/release_memory_occupation";
    if (ask_control(path, target, body_of(options), token ? token : "", answer) == Answer::interrupted)
        return static_cast<int>(ExitCode::signalled) + interrupted();
    const Json body = parse_answer(path, answer);
    if (answer.status != 200) report_refusal(answer, body);
    print(fmt::format("{}\n", options.json ? body.dump() : summary(options, body)));
    finish_output();
    return static_cast<int>(ExitCode::success);
}

}  // namespace stagehand::cli
