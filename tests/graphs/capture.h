// What a test does with the capture backend's streams: the calls of a driver that an engine would use.
#pragma once

#include <stagehand/backend.h>

extern "C" {

typedef struct sh_test_graph sh_test_graph;

// Begins a capture on a stream of the capture backend.
SH_API sh_status sh_test_capture_begin(sh_stream stream);
// What is queued on the stream from now on comes after what is queued on `other`: a fork, or a join.
SH_API sh_status sh_test_follow(sh_stream stream, sh_stream other);
// Ends it. An error: the capture was invalidated (the text is the backend's last error), or a stream was not joined.
SH_API sh_status sh_test_capture_end(sh_stream stream, sh_test_graph** out_graph);
// Queues the graph on the stream.
SH_API sh_status sh_test_graph_launch(sh_test_graph* graph, sh_stream stream);
SH_API void sh_test_graph_destroy(sh_test_graph* graph);
// Commands of a graph: all, and copies to the device.
SH_API void sh_test_graph_count(sh_test_graph* graph, uint64_t* out_commands, uint64_t* out_copies);
SH_API const char* sh_test_capture_error(void);
}
