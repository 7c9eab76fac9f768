// sh_..._init(): each does what its SH_..._INIT does.
#include <cstring>

#include <stagehand/stagehand.h>

namespace {

template <class Struct>
void init(Struct *data) {
    std::memset(data, 0, sizeof *data);
    data->struct_size = sizeof *data;
}

}  // namespace

extern "C" {

void sh_device_options_init(sh_device_options *options) { init(options); }
void sh_memory_info_init(sh_memory_info *info) { init(info); }
void sh_device_caps_init(sh_device_caps *caps) { init(caps); }
void sh_backend_info_init(sh_backend_info *info) { init(info); }
void sh_runtime_options_init(sh_runtime_options *options) { init(options); }
void sh_segment_init(sh_segment *segment) { init(segment); }
void sh_block_desc_init(sh_block_desc *desc) { init(desc); }
void sh_block_state_init(sh_block_state *state) { init(state); }
void sh_use_init(sh_use *use) { init(use); }
void sh_plan_options_init(sh_plan_options *options) { init(options); }
void sh_plan_info_init(sh_plan_info *info) { init(info); }
void sh_view_init(sh_view *view) { init(view); }
void sh_runtime_stats_init(sh_runtime_stats *stats) { init(stats); }
void sh_guest_options_init(sh_guest_options *options) { init(options); }

}  // extern "C"
