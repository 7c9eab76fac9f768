#include "backend/thread_stream.h"

#include <atomic>

namespace stagehand::thread_stream {

sh_stream of_this_thread() {
    static constinit std::atomic<sh_stream> last{kNone};
    static constinit thread_local sh_stream own = 0;
    if (!own) own = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return own;
}

}  // namespace stagehand::thread_stream
