// Recorder: captures of streams into graphs, by the rules of real drivers, on the host backend, which has no graphs.
// During a capture, commands are recorded instead of queued, and streams join through events. A call that a driver
// forbids invalidates the capture. Streams of several devices may join one capture. The capture
// backend and the stub of CUDA's driver use this class.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <stagehand/backend.h>

namespace stagehand::test {

// The recorder's answer to a call.
enum class Answer {
    pass,         // no capture is concerned: the call goes its way
    noted,        // it has become part of a graph
    isolation,    // a captured stream waits for an event from outside its capture
    unjoined,     // a capture ends while one of its streams was not joined
    merge,        // two captures would become one
    captured,     // what only a capture knows was asked for, or waited for
    unsafe,       // a capture forbids such calls on this thread
    invalidated,  // one of the above has happened to the capture before
    unmatched     // no capture began on the stream
};
const char* text_of(Answer answer);
inline bool is_refusal(Answer answer) { return answer > Answer::noted; }

// For a capture: the threads on which the capture forbids unsafe calls. For a thread: how the thread declares its own
// calls.
enum class CaptureMode { global, thread_local_, relaxed };

struct Recording {
    enum class Kind { copy, launch, other, record, wait };
    // Queues a command on a stream of the host backend.
    using Replay = std::function<sh_status(const sh_backend&, sh_backend_device*, sh_stream)>;
    struct Command {
        Kind kind;
        size_t stream = 0;  // of this recording
        Replay replay = {};
        size_t record_of = 0;  // of a wait: the command that recorded
    };
    std::vector<Command> commands;
    struct Stream {
        sh_backend_device* device;  // of the host backend
        sh_stream stream;
    };
    std::vector<Stream> streams;  // the first is where it began

    uint64_t copies() const;
};

class Recorder {
public:
    // `device`, here and below, is the host backend's that the stream belongs to.
    Answer begin(sh_backend_device* device, sh_stream stream, CaptureMode mode);
    // Refusals end the capture too. Only `unmatched` ends nothing, because no capture began on this stream.
    Answer end(sh_stream stream, std::shared_ptr<const Recording>* out);
    bool takes_part(sh_stream stream);

    Answer note(sh_backend_device* device, sh_stream stream, Recording::Kind kind, Recording::Replay replay);
    Answer record(sh_backend_device* device, sh_stream stream, sh_backend_event event);
    Answer wait(sh_backend_device* device, sh_stream stream, sh_backend_event event);

    // Called before the host queries or waits for an event or a stream.
    Answer ask(sh_backend_event event);
    Answer synchronize(sh_stream stream);
    // Called before any call that a driver counts as unsafe, on a thread of this mode.
    Answer unsafe(CaptureMode thread);
    void forget(sh_backend_event event);

private:
    struct Capture {
        Recording recording;
        std::vector<bool> joined;  // for each stream: another has waited for its last command
        CaptureMode mode = CaptureMode::global;
        std::thread::id thread;
        bool broken = false, over = false;
    };
    struct Captured {  // an event's last record
        std::shared_ptr<Capture> capture;
        size_t command = 0;
    };

    std::shared_ptr<Capture> capture_of(sh_stream stream) const;
    static Answer refuse(Capture& capture, Answer why);
    static size_t place(Capture& capture, Recording::Stream stream);
    static size_t append(Capture& capture, Recording::Stream stream, Recording::Command command);

    std::mutex mutex_;
    std::map<sh_stream, std::shared_ptr<Capture>> capturing_;
    std::map<sh_backend_event, Captured> captured_;
};

// A recording that can be launched, with streams and events of its own. Launches run one after the other.
class Instance {
public:
    Instance(const sh_backend& host, std::shared_ptr<const Recording> recording);
    ~Instance();  // waits for its launches
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;

    sh_status launch(sh_stream stream);

private:
    const sh_backend& host_;
    const std::shared_ptr<const Recording> recording_;
    std::mutex mutex_;
    std::vector<Recording::Stream> streams_;     // one for each of the recording's
    std::map<size_t, sh_backend_event> events_;  // of each record
    sh_backend_event begin_ = 0;
    std::vector<sh_backend_event> ends_;
    sh_status broken_ = SH_OK;  // the error of the constructor
};

}  // namespace stagehand::test
