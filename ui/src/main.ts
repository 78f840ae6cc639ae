import "./styles/fonts.css";
import "./styles/tokens.css";
import "./styles/page.css";
import "./styles/controls.css";
import "./styles/tables.css";

import { mount } from "svelte";

import App from "./App.svelte";
import { session } from "./state/session.svelte";

const target = document.getElementById("app");
if (target) {
  mount(App, { target });
  void session.load();
}
