#include "engine/execution/executor.h"
