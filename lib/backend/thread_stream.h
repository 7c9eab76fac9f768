// Each thread's own default stream. Drivers have one handle for all of them (CUDA, HIP: 2), which means another stream on each thread; in here
// each has a name of its own. The api turns handles into names, BackendDevice names into handles.
#pragma once

#include <stagehand/base.h>

namespace stagehand::thread_stream {

// Neither a handle nor a name. Names lie above it, where no handle does: user space ends below.
constexpr sh_stream kNone = uint64_t(1) << 63;

// The name of the calling thread's. Not given to another thread when this one has ended.
sh_stream of_this_thread();

inline bool is_name(sh_stream stream) { return stream > kNone && stream != SH_STREAM_HOST; }

}  // namespace stagehand::thread_stream
