// The stub's captures and graphs.
#include <memory>

#include "stub_cuda.h"

using namespace stagehand::stub;
using stagehand::test::Instance;
using stagehand::test::Recording;

namespace {

using Graph = std::shared_ptr<const Recording>;

Graph& graph_of(CUgraph graph) { return *reinterpret_cast<Graph*>(graph); }
Instance* instance_of(CUgraphExec instance) { return reinterpret_cast<Instance*>(instance); }

}  // namespace

STUB_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    *status =
        stub().recorder.takes_part(host(stream)) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return entered();
}

STUB_EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    return result_of(stub().recorder.begin(stub().device, host(stream), mode_of(mode)));
}

STUB_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    *graph = nullptr;
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    auto recording = std::make_unique<Graph>();
    const CUresult result = result_of(stub().recorder.end(host(stream), recording.get()));
    if (result == CUDA_SUCCESS) *graph = reinterpret_cast<CUgraph>(recording.release());
    return result;
}

// Records of events, and waits for them, are edges and not nodes.
STUB_EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    const size_t room = nodes ? *count : 0;
    *count = 0;
    for (const Recording::Command& command : graph_of(graph)->commands) {
        if (command.kind == Recording::Kind::record || command.kind == Recording::Kind::wait) continue;
        if (*count < room) nodes[*count] = reinterpret_cast<CUgraphNode>(const_cast<Recording::Command*>(&command));
        ++*count;
    }
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
    const auto& command = *reinterpret_cast<const Recording::Command*>(node);
    *type = command.kind == Recording::Kind::copy     ? CU_GRAPH_NODE_TYPE_MEMCPY
            : command.kind == Recording::Kind::launch ? CU_GRAPH_NODE_TYPE_KERNEL
                                                      : CU_GRAPH_NODE_TYPE_MEMSET;
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    delete &graph_of(graph);
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuGraphInstantiate(CUgraphExec* instance, CUgraph graph, unsigned long long flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    *instance = reinterpret_cast<CUgraphExec>(new Instance(*stub().host, graph_of(graph)));
    return CUDA_SUCCESS;
}

STUB_EXPORT CUresult cuGraphLaunch(CUgraphExec instance, CUstream stream) {
    if (const CUresult result = entered(); result != CUDA_SUCCESS) return result;
    return result_of(instance_of(instance)->launch(host(stream)));
}

STUB_EXPORT CUresult cuGraphExecDestroy(CUgraphExec instance) {
    delete instance_of(instance);
    return CUDA_SUCCESS;
}
