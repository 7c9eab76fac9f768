/*
 * libstagehand: decides which bytes of a model are on the device, and moves them there in time. This header includes
 * all others but backend.h, which is for authors of backends.
 */
#ifndef STAGEHAND_STAGEHAND_H
#define STAGEHAND_STAGEHAND_H

#include "activations.h"
#include "base.h"
#include "contents.h"
#include "control.h"
#include "device.h"
#include "graph.h"
#include "helpers.h"
#include "host.h"
#include "members.h"
#include "occupancy.h"
#include "parts.h"
#include "residency.h"
#include "runtime.h"
#include "source.h"
#include "spill.h"
#include "streaming.h"
#include "telemetry.h"
#include "version.h"

#endif
