import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

import { licenses } from "./licenses.ts";

// All addresses are relative to the <base> element, which nsqadmin adds to the document.
// `npm run dev` uses the API of the nsqadmin at NSQADMIN; the default is the one of `nsqx up`.
const nsqadmin = process.env["NSQADMIN"] ?? "http://127.0.0.1:4171";

const devBase: Plugin = {
  name: "dev-base",
  apply: "serve",
  transformIndexHtml: (html) => html.replace("<head>", '<head><base href="/">'),
};

export default defineConfig({
  base: "./",
  plugins: [svelte(), licenses(), devBase],
  build: {
    outDir: "../src/nsqx/nsqadmin/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
  },
  server: { proxy: { "/api": nsqadmin, "/config": nsqadmin, "/ping": nsqadmin } },
});
