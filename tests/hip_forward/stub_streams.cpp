// The stub's streams that nobody creates: the default stream of each thread, and the legacy default stream, which waits
// for all of them. The stub leaves out that the threads' streams also wait for the legacy stream.
#include <algorithm>
#include <cstdlib>

#include "stub_cuda.h"

namespace stagehand::stub {
namespace {

std::mutex mutex;
std::vector<sh_stream> of_threads;

void must(sh_status status) {
    if (status < 0) std::abort();
}

sh_stream create() {
    sh_stream stream = 0;
    must(stub().host->stream_create(stub().device, &stream));
    return stream;
}

// The stream of a thread is destroyed when the thread ends and its work has finished.
class Own {
public:
    Own() : stream_(create()) {
        const std::lock_guard lock(mutex);
        of_threads.push_back(stream_);
    }
    ~Own() {
        const std::lock_guard lock(mutex);
        std::erase(of_threads, stream_);
        must(stub().host->stream_synchronize(stub().device, stream_));
        must(stub().host->stream_destroy(stub().device, stream_));
    }
    sh_stream stream() const { return stream_; }

private:
    sh_stream stream_;
};

sh_stream legacy() {
    static const sh_stream stream = create();
    static const sh_backend_event event = [] {
        sh_backend_event made = 0;
        must(stub().host->event_create(stub().device, 0, &made));
        return made;
    }();
    const std::lock_guard lock(mutex);
    for (const sh_stream other : of_threads) {
        must(stub().host->event_record(stub().device, event, other));
        must(stub().host->stream_wait_event(stub().device, stream, event));
    }
    return stream;
}

}  // namespace

sh_stream host(CUstream stream) {
    if (stream == nullptr || stream == CU_STREAM_LEGACY) return legacy();
    if (stream != CU_STREAM_PER_THREAD) return reinterpret_cast<sh_stream>(stream);
    static thread_local const Own own;
    return own.stream();
}

}  // namespace stagehand::stub
