// The default stream of each thread. Drivers use one handle for all of them (2 in CUDA and HIP), which means a
// different stream on each thread. The library gives each of these streams a name of its own. The api turns handles
// into names, and BackendDevice turns names into handles.
#pragma once

#include <stagehand/base.h>

namespace stagehand::thread_stream {

// Neither a handle nor a name. Names are larger than this value. Handles are smaller, because user space ends below.
constexpr sh_stream kNone = uint64_t(1) << 63;

// Returns the name of the calling thread's default stream. A name is not used again after its thread has ended.
sh_stream of_this_thread();

inline bool is_name(sh_stream stream) { return stream > kNone && stream != SH_STREAM_HOST; }

}  // namespace stagehand::thread_stream
