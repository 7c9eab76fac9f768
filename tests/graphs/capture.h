// The test's calls on the capture backend's streams. They stand for the driver's calls of an engine.
#pragma once

#include <stagehand/backend.h>

extern "C" {

typedef struct sh_test_graph sh_test_graph;

// Begins a capture on a stream of the capture backend.
SH_API sh_status sh_test_capture_begin(sh_stream stream);
// Work that is queued on the stream from now on comes after the work on `other`. This makes a fork or a join.
SH_API sh_status sh_test_follow(sh_stream stream, sh_stream other);
// Ends the capture. Returns an error if the capture was invalidated (the text is the backend's last error), or if a
// stream was not joined.
SH_API sh_status sh_test_capture_end(sh_stream stream, sh_test_graph** out_graph);
// Queues the graph on the stream.
SH_API sh_status sh_test_graph_launch(sh_test_graph* graph, sh_stream stream);
SH_API void sh_test_graph_destroy(sh_test_graph* graph);
// Returns the number of a graph's commands, and the number of its copies to the device.
SH_API void sh_test_graph_count(sh_test_graph* graph, uint64_t* out_commands, uint64_t* out_copies);
// Returns the number of events that exist now on the device that was opened last.
SH_API uint64_t sh_test_events(void);
SH_API const char* sh_test_capture_error(void);
}
