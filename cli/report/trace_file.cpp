#include "report/trace_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/text.h"
#include "report/json_fields.h"

namespace stagehand::cli {

namespace {

constexpr std::string_view trace_beginning = R"({"displayTimeUnit":"ms","traceEvents":[)";
constexpr std::size_t most_slices = 20'000;
constexpr std::size_t most_memory_points = 2'000;

// The number of a thread is row * 16 + track.
constexpr std::uint64_t row_stride = 16;
constexpr std::uint64_t steps_track = 1;

std::optional<Lane> lane_of(std::uint64_t track) {
    constexpr std::array<std::optional<Lane>, 7> lanes = {std::nullopt, std::nullopt,     Lane::wait, Lane::load,
                                                          Lane::view,   Lane::write_back, Lane::plan};
    return track < lanes.size() ? lanes[track] : std::nullopt;
}

// Calls `visit` for each event. The library writes each on a line of its own, so that a long trace needs little memory
// here. Returns false if the trace has no end.
bool read_events(const std::string& path, const std::function<void(const JsonFields&)>& visit) {
    const std::string name = model::printable(path);
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    std::string text;
    if (!file || !std::getline(file, text)) {
        throw CommandError(ExitCode::model,
                           fmt::format("{}: {}", name, errno != 0 ? std::strerror(errno) : "is empty"));
    }
    for (std::uint64_t number = 2; std::getline(file, text); ++number) {
        if (text == "]}") return true;
        if (!text.empty() && text.back() == ',') text.pop_back();
        const Json json = Json::parse(text, nullptr, false);
        if (json.is_discarded()) {
            if (file.eof()) return false;
            throw CommandError(ExitCode::model, fmt::format("{}: line {} is not an event of a trace", name, number));
        }
        visit(JsonFields(json, fmt::format("{}: line {}", name, number)));
    }
    return false;
}

struct Span {
    std::string name;
    double begin_ms = 0;
    double end_ms = 0;
};

// The first reading finds the process of the runtime and its steps.
struct Contents {
    std::map<std::uint64_t, std::string> processes;
    std::map<std::uint64_t, std::vector<Span>> steps;  // by process
    double first_ms = std::numeric_limits<double>::infinity();
    bool complete = false;
};

Contents contents_of(const std::string& path) {
    Contents contents;
    contents.complete = read_events(path, [&](const JsonFields& event) {
        const std::string phase = event.text("ph");
        const std::uint64_t process = event.count("pid");
        if (phase == "M" && event.text("name") == "process_name") {
            if (const Json* const arguments = event.find("args"); arguments != nullptr)
                contents.processes[process] = JsonFields(*arguments, event.where()).text("name");
        } else if (phase != "M") {
            const double begin = event.number("ts") / 1e3;
            contents.first_ms = std::min(contents.first_ms, begin);
            if (phase == "X" && event.count("tid") == steps_track)
                contents.steps[process].push_back({event.text("name"), begin, begin + event.number("dur") / 1e3});
        }
    });
    return contents;
}

// The step of median length, without the first if there are several.
Span typical_step(std::vector<Span> steps) {
    if (steps.size() > 1) steps.erase(steps.begin());
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>((steps.size() - 1) / 2);
    std::nth_element(steps.begin(), middle, steps.end(), [](const Span& left, const Span& right) {
        return left.end_ms - left.begin_ms < right.end_ms - right.begin_ms;
    });
    return *middle;
}

// A trace names blocks as messages do: block "layers.0".
std::string plain_name(const std::string& name) {
    constexpr std::string_view beginning = "block \"";
    const std::size_t end = name.rfind('"');
    return name.starts_with(beginning) && end >= beginning.size()
               ? name.substr(beginning.size(), end - beginning.size()) + name.substr(end + 1)
               : name;
}

void add_slice(const JsonFields& event, const Span& step, TraceFile& trace) {
    const std::uint64_t thread = event.count("tid");
    const std::optional<Lane> lane = lane_of(thread % row_stride);
    const double begin = event.number("ts") / 1e3;
    const double end = begin + event.number("dur") / 1e3;
    if (!lane || end < step.begin_ms || begin > step.end_ms) return;
    if (trace.slices.size() == most_slices) {
        ++trace.left_out;
        return;
    }
    TraceSlice slice;
    slice.lane = *lane;
    slice.name = plain_name(event.text("name"));
    slice.row = thread / row_stride;
    slice.begin_ms = std::max(begin, step.begin_ms) - step.begin_ms;
    slice.end_ms = std::min(end, step.end_ms) - step.begin_ms;
    if (const Json* const arguments = event.find("args"); arguments != nullptr)
        slice.bytes = JsonFields(*arguments, event.where()).count("bytes");
    trace.slices.push_back(std::move(slice));
}

// Keeps the highest of neighbours.
void thin_out(std::vector<TraceMemory>& points) {
    const std::size_t each = (points.size() + most_memory_points - 1) / most_memory_points;
    if (each <= 1) return;
    std::vector<TraceMemory> kept;
    for (std::size_t i = 0; i < points.size(); i += each) {
        const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i);
        const auto end = points.begin() + static_cast<std::ptrdiff_t>(std::min(i + each, points.size()));
        kept.push_back(*std::max_element(
            begin, end, [](const TraceMemory& left, const TraceMemory& right) { return left.bytes < right.bytes; }));
    }
    points = std::move(kept);
}

// A trace does not record when the device computes. The plan's times are put where they can begin at the earliest: when
// the block was acquired, its load has ended, and the computation before has ended.
void add_computation(const RunFile& run, TraceFile& trace) {
    if (!run.plan || run.plan->uses.empty()) return;
    std::vector<const TraceSlice*> views;
    std::map<std::string, std::vector<const TraceSlice*>> loads;
    for (const TraceSlice& slice : trace.slices)
        if (slice.lane == Lane::view)
            views.push_back(&slice);
        else if (slice.lane == Lane::load)
            loads[slice.name].push_back(&slice);
    std::stable_sort(views.begin(), views.end(),
                     [](const TraceSlice* left, const TraceSlice* right) { return left->begin_ms < right->begin_ms; });
    // The views follow the order of use. Further views of a block, and of blocks that are packed with it, belong to the
    // same use. A step of another order gets no computation.
    std::vector<TraceSlice> computed;
    double free_ms = 0;
    auto use = run.plan->uses.begin();
    for (const TraceSlice* view : views) {
        if (use == run.plan->uses.end() || run.plan->blocks[use->block].name != view->name) continue;
        const double length = static_cast<double>(use->compute_ns) / 1e6;
        double begin = std::max(free_ms, view->begin_ms);
        for (const TraceSlice* load : loads[view->name])
            if (load->begin_ms <= view->end_ms) begin = std::max(begin, load->end_ms);
        free_ms = begin + length;
        if (length > 0 && begin < trace.step_ms)
            computed.push_back({Lane::compute, view->name, 0, begin, std::min(free_ms, trace.step_ms), 0});
        ++use;
    }
    if (use != run.plan->uses.end()) return;
    trace.slices.insert(trace.slices.end(), computed.begin(), computed.end());
}

}  // namespace

const char* to_string(Lane lane) {
    constexpr std::array names{"copies", "in use", "computation", "waits", "write-backs", "planning"};
    return names[static_cast<std::size_t>(lane)];
}

bool is_trace(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string beginning(trace_beginning.size(), '\0');
    file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
    return file && beginning == trace_beginning;
}

TraceFile read_trace_file(const std::string& path, const RunFile& run) {
    const Contents contents = contents_of(path);
    const auto process = std::find_if(contents.processes.begin(), contents.processes.end(),
                                      [&](const auto& entry) { return entry.second == run.runtime; });
    const auto steps = process == contents.processes.end() ? contents.steps.end() : contents.steps.find(process->first);
    if (steps == contents.steps.end()) {
        throw CommandError(ExitCode::model,
                           fmt::format("{} holds no step of runtime {}, whose telemetry is {}", model::printable(path),
                                       model::in_quotes(run.runtime), model::printable(run.path)));
    }
    const Span step = typical_step(steps->second);
    TraceFile trace;
    trace.path = path;
    trace.step = step.name;
    trace.step_ms = step.end_ms - step.begin_ms;
    trace.begin_ms = step.begin_ms - contents.first_ms;
    trace.steps = steps->second.size();
    trace.cut = !contents.complete;
    read_events(path, [&](const JsonFields& event) {
        if (event.count("pid") != process->first) return;
        if (event.text("ph") == "X") {
            add_slice(event, step, trace);
        } else if (event.text("ph") == "C" && event.text("name") == "held bytes") {
            if (const Json* const arguments = event.find("args"); arguments != nullptr)
                trace.memory.push_back({event.number("ts") / 1e3 - contents.first_ms,
                                        JsonFields(*arguments, event.where()).count("value")});
        }
    });
    thin_out(trace.memory);
    add_computation(run, trace);
    return trace;
}

}  // namespace stagehand::cli
