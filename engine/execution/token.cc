#include "engine/execution/token.h"
