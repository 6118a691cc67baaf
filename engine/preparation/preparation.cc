#include "engine/preparation/preparation.h"
