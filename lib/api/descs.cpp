#include "api/descs.h"

namespace stagehand::api {

Status take_segments(const sh_segment* segments, uint64_t count, const ArrayName& names, std::vector<sh_segment>* out) {
    SH_TRY(take_array(segments, count, names, out));
    // Only the parts of a block begin elsewhere than at the beginning of what the callback gives.
    for (sh_segment& segment : *out)
        if (segment.kind == SH_SOURCE_FILL) segment.file_offset = 0;
    return Status();
}

Status take_segments(sh_block_desc* desc, std::vector<sh_segment>* out) {
    if (!desc->segments) return Status();
    SH_TRY(take_segments(desc->segments, desc->segment_count, {"segments", "segment_count"}, out));
    desc->segments = out->data();
    return Status();
}

Status Descs::take(const sh_block_desc* descs, uint64_t count, const char* name) {
    SH_TRY(take_array(descs, count, {name}, &all));
    segments.resize(count);
    for (uint64_t i = 0; i < count; i++) SH_TRY(take_segments(&all[i], &segments[i]));
    return Status();
}

}  // namespace stagehand::api
