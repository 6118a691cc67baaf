#include "engine/memory/array_assembler.h"
