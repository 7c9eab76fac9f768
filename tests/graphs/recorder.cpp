#include "recorder.h"

#include <algorithm>

namespace stagehand::test {

const char* text_of(Answer answer) {
    switch (answer) {
        case Answer::pass:
            return "not captured";
        case Answer::noted:
            return "captured";
        case Answer::isolation:
            return "a captured stream waits for an event from outside its capture";
        case Answer::unjoined:
            return "a stream was not joined";
        case Answer::merge:
            return "a captured stream waits for an event of another capture";
        case Answer::captured:
            return "what only a capture knows was asked for or waited for";
        case Answer::unsafe:
            return "a capture forbids such calls on this thread";
        case Answer::invalidated:
            return "the capture was invalidated before";
        case Answer::unmatched:
            return "no capture began on this stream";
    }
    return "?";
}

uint64_t Recording::copies() const {
    return static_cast<uint64_t>(
        std::count_if(commands.begin(), commands.end(), [](const Command& c) { return c.kind == Kind::copy; }));
}

std::shared_ptr<Recorder::Capture> Recorder::capture_of(sh_stream stream) const {
    const auto found = capturing_.find(stream);
    return found == capturing_.end() ? nullptr : found->second;
}

Answer Recorder::refuse(Capture& capture, Answer why) {
    capture.broken = true;
    return why;
}

size_t Recorder::place(Capture& capture, Recording::Stream stream) {
    auto& streams = capture.recording.streams;
    const auto found =
        std::ranges::find_if(streams, [&](const Recording::Stream& s) { return s.stream == stream.stream; });
    if (found != streams.end()) return static_cast<size_t>(found - streams.begin());
    capture.joined.reserve(streams.size() + 1);  // both, or neither
    streams.push_back(stream);
    capture.joined.push_back(true);
    return streams.size() - 1;
}

size_t Recorder::append(Capture& capture, Recording::Stream stream, Recording::Command command) {
    command.stream = place(capture, stream);
    capture.joined[command.stream] = false;
    capture.recording.commands.push_back(std::move(command));
    return capture.recording.commands.size() - 1;
}

Answer Recorder::begin(sh_backend_device* device, sh_stream stream, CaptureMode mode) {
    const std::lock_guard lock(mutex_);
    if (capture_of(stream)) return Answer::merge;
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    place(*capture, {device, stream});
    capturing_[stream] = std::move(capture);
    return Answer::pass;
}

Answer Recorder::end(sh_stream stream, std::shared_ptr<const Recording>* out) {
    const std::lock_guard lock(mutex_);
    const auto capture = capture_of(stream);
    if (!capture || capture->recording.streams[0].stream != stream) return Answer::unmatched;
    capture->over = true;
    std::erase_if(capturing_, [&](const auto& entry) { return entry.second == capture; });
    if (capture->broken) return Answer::invalidated;
    for (size_t i = 1; i < capture->joined.size(); i++)
        if (!capture->joined[i]) return Answer::unjoined;
    *out = std::make_shared<const Recording>(capture->recording);
    return Answer::pass;
}

bool Recorder::takes_part(sh_stream stream) {
    const std::lock_guard lock(mutex_);
    return capture_of(stream) != nullptr;
}

Answer Recorder::note(sh_backend_device* device, sh_stream stream, Recording::Kind kind, Recording::Replay replay) {
    const std::lock_guard lock(mutex_);
    const auto capture = capture_of(stream);
    if (!capture) return Answer::pass;
    if (capture->broken) return Answer::invalidated;
    append(*capture, {device, stream}, {.kind = kind, .replay = std::move(replay)});
    return Answer::noted;
}

Answer Recorder::record(sh_backend_device* device, sh_stream stream, sh_backend_event event) {
    const std::lock_guard lock(mutex_);
    const auto capture = capture_of(stream);
    if (!capture) {
        captured_.erase(event);
        return Answer::pass;
    }
    if (capture->broken) return Answer::invalidated;
    const size_t command = append(*capture, {device, stream}, {.kind = Recording::Kind::record});
    captured_[event] = {capture, command};
    return Answer::noted;
}

Answer Recorder::wait(sh_backend_device* device, sh_stream stream, sh_backend_event event) {
    const std::lock_guard lock(mutex_);
    const auto capture = capture_of(stream);
    if (capture && capture->broken) return Answer::invalidated;
    const auto found = captured_.find(event);
    if (found == captured_.end()) return capture ? refuse(*capture, Answer::isolation) : Answer::pass;
    const Captured& recorded = found->second;
    if (recorded.capture->over) return capture ? refuse(*capture, Answer::isolation) : Answer::captured;
    if (capture && capture != recorded.capture) return refuse(*capture, Answer::merge);
    Capture& into = *recorded.capture;
    capturing_[stream] = recorded.capture;
    Recording::Command command = {.kind = Recording::Kind::wait};
    command.record_of = recorded.command;
    // The stream that recorded is joined if nothing came after the record.
    auto& commands = into.recording.commands;
    const size_t from = commands[recorded.command].stream;
    bool last = true;
    for (size_t i = recorded.command + 1; i < commands.size(); i++) last &= commands[i].stream != from;
    append(into, {device, stream}, std::move(command));
    if (last && from != place(into, {device, stream})) into.joined[from] = true;
    return Answer::noted;
}

Answer Recorder::ask(sh_backend_event event) {
    const std::lock_guard lock(mutex_);
    const auto found = captured_.find(event);
    return found == captured_.end() ? Answer::pass : refuse(*found->second.capture, Answer::captured);
}

Answer Recorder::synchronize(sh_stream stream) {
    const std::lock_guard lock(mutex_);
    const auto capture = capture_of(stream);
    return capture ? refuse(*capture, Answer::captured) : Answer::pass;
}

Answer Recorder::unsafe(CaptureMode thread) {
    if (thread == CaptureMode::relaxed) return Answer::pass;
    const std::lock_guard lock(mutex_);
    Answer answer = Answer::pass;
    for (const auto& [stream, capture] : capturing_) {
        const bool own = capture->thread == std::this_thread::get_id() && capture->mode != CaptureMode::relaxed;
        const bool other = thread == CaptureMode::global && capture->mode == CaptureMode::global;
        if (own || other) answer = refuse(*capture, Answer::unsafe);
    }
    return answer;
}

void Recorder::forget(sh_backend_event event) {
    const std::lock_guard lock(mutex_);
    captured_.erase(event);
}

Instance::Instance(const sh_backend& host, std::shared_ptr<const Recording> recording)
    : host_(host), recording_(std::move(recording)), streams_(recording_->streams), ends_(streams_.size(), 0) {
    const auto also = [&](sh_status status) { broken_ = broken_ < 0 ? broken_ : status; };
    for (Recording::Stream& own : streams_) also(host_.stream_create(own.device, &own.stream));
    for (size_t i = 0; i < recording_->commands.size(); i++)
        if (const Recording::Command& command = recording_->commands[i]; command.kind == Recording::Kind::record)
            also(host_.event_create(streams_[command.stream].device, 0, &events_[i]));
    for (size_t i = 0; i < ends_.size(); i++) also(host_.event_create(streams_[i].device, 0, &ends_[i]));
    also(host_.event_create(streams_[0].device, 0, &begin_));
}

Instance::~Instance() {
    for (const Recording::Stream& own : streams_) host_.stream_synchronize(own.device, own.stream);
    for (size_t i = 0; i < ends_.size(); i++) host_.event_destroy(streams_[i].device, ends_[i]);
    for (const auto& [command, event] : events_)
        host_.event_destroy(streams_[recording_->commands[command].stream].device, event);
    host_.event_destroy(streams_[0].device, begin_);
    for (const Recording::Stream& own : streams_) host_.stream_destroy(own.device, own.stream);
}

sh_status Instance::launch(sh_stream stream) {
    const std::lock_guard lock(mutex_);
    sh_status worst = broken_;
    const auto also = [&](sh_status status) { worst = worst < 0 ? worst : status; };
    sh_backend_device* const device = streams_[0].device;
    also(host_.event_record(device, begin_, stream));
    for (const Recording::Stream& own : streams_) {
        also(host_.stream_wait_event(own.device, own.stream, begin_));
        for (const sh_backend_event end : ends_)
            also(host_.stream_wait_event(own.device, own.stream, end));  // of the launch before
    }
    for (size_t i = 0; i < recording_->commands.size(); i++) {
        const Recording::Command& command = recording_->commands[i];
        const Recording::Stream& own = streams_[command.stream];
        if (command.kind == Recording::Kind::record)
            also(host_.event_record(own.device, events_[i], own.stream));
        else if (command.kind == Recording::Kind::wait)
            also(host_.stream_wait_event(own.device, own.stream, events_[command.record_of]));
        else
            also(command.replay(host_, own.device, own.stream));
    }
    for (size_t i = 0; i < streams_.size(); i++) {
        also(host_.event_record(streams_[i].device, ends_[i], streams_[i].stream));
        also(host_.stream_wait_event(device, stream, ends_[i]));
    }
    return worst;
}

}  // namespace stagehand::test
