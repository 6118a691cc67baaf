#include "engine/memory/budget.h"
