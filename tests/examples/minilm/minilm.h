// The example's C headers, for tests in C++.
#pragma once

#include <cstddef>
#include <cstdint>

#include <stagehand/stagehand.h>

extern "C" {
#include "engine.h"
#include "safetensors.h"
#include "tokenizer.h"
}
