#include "transfer/carrier/carrier.h"

#include <atomic>

namespace stagehand::transfer {
namespace {

std::atomic<uint64_t> least = 2 << 20;

}  // namespace

uint64_t Carrier::least_bytes() { return least; }

void Carrier::set_least_bytes(uint64_t bytes) { least = bytes; }

}  // namespace stagehand::transfer
