#include "engine/planning/plan.h"
