// Starts the Machine of a page that holds its description.

import { createMachine } from "./machine.js";

const described = JSON.parse(document.getElementById("data").textContent).pass;
const machine = createMachine(document.getElementById("machine"));
document.getElementById("machine").append(machine.panels);
machine.show(described, { token: described.draw?.id ?? null });
